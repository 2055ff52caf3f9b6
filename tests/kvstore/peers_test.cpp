// Placement peers: every worker hosts the server of its shard.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <string>
#include <thread>

#include "tests/kvstore/job.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

class Peers : public testing::TestWithParam<std::uint32_t> {};

TEST_P(Peers, SumInRankOrderWhateverTheSize) {
  const std::uint32_t workers = GetParam();
  run_peers({workers}, [workers](Engine& engine) {
    // One element: more ranks than elements. The largest is cut over all.
    const std::vector<KeySpec> specs = {{"one", {1}}, {"small", {7}}, {"large", {700'001}}};
    const auto keys = engine.declare(specs);
    for (unsigned step = 0; step < 3; ++step) {
      for (std::size_t k = 0; k < keys.size(); ++k) {
        const auto n = specs[k].elements();
        auto values = random_floats(n, 100 * step + engine.rank());
        engine.push_pull(keys[k], values, values, 0).wait();
        EXPECT_EQ(values, rank_order_sum(n, 100 * step, workers));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Workers, Peers, testing::Values(1, 2, 3, 5, 8));

TEST(PeersBits, AreThoseOfDedicatedServers) {
  for (const std::uint32_t workers : {2U, 3U}) {
    JobSize size{workers, 2};
    size.engine.shard_bound_elements = 1000;
    EXPECT_EQ(results_of(size, run_peers), results_of(size, run_job));
  }
}

// Of the payload's P bytes a worker sends what others own, P (N-1)/N, and as a server its own P/N to N-1
// others.
TEST(PeersTraffic, IsTwiceTheShareOfTheOthers) {
  static constexpr std::uint64_t kUnits = 24;  // whole shards for 1, 2, 3, 4 workers
  for (const std::uint32_t workers : {1U, 2U, 3U, 4U}) {
    run_peers({workers}, [workers](Engine& engine) {
      std::vector<float> values(kUnits * compress::kUnitElements, 1.0F);
      const auto keys = engine.declare(std::vector<KeySpec>{{"w", {values.size()}}});
      engine.push_pull(keys[0], values, values, 0).wait();
      engine.barrier();  // all answers are counted where they were sent
      std::uint64_t sent = 0, frames = 0;
      for (const auto& peer : engine.metrics().counters()) {
        sent += peer.counters.bytes_sent;
        frames += peer.counters.frames_sent;
      }
      const std::uint64_t payload = values.size() * sizeof(float);
      EXPECT_EQ(sent, 2 * payload * (workers - 1) / workers + frames * transport::kHeaderBytes);
    });
  }
}

TEST(PeersOrder, DoesNotMatter) {
  JobSize size{3};
  size.engine.credit_bytes = 1;
  run_peers(size, [](Engine& engine) {
    std::vector<KeySpec> specs;
    for (unsigned k = 0; k < 12; ++k) specs.push_back({std::to_string(k), {70'000}});
    const auto keys = engine.declare(specs);
    std::vector<std::vector<float>> values(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {  // each rank in another order, each waiting for every key
      const std::size_t k = (i * 5 + engine.rank() * 4) % keys.size();
      values[k] = random_floats(70'000, static_cast<unsigned>(10 * k) + engine.rank());
    }
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::size_t k = (i * 5 + engine.rank() * 4) % keys.size();
      tickets.push_back(engine.push_pull(keys[k], values[k], values[k], static_cast<std::int32_t>(k)));
    }
    for (const Ticket& ticket : tickets) ticket.wait();
    for (std::size_t k = 0; k < keys.size(); ++k)
      EXPECT_EQ(values[k], rank_order_sum(70'000, static_cast<unsigned>(10 * k), 3));
  });
}

// The server of a worker that is done serves on; a round that needs its worker fails, by the worker's name.
TEST(PeersEnd, AWorkerThatLeavesEarlyFailsOnlyWhatStillNeedsIt) {
  run_peers({2}, [](Engine& engine) {
    std::vector<float> values(300'000, 1.0F);
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {values.size()}}});
    for (int step = 0; step < 20; ++step) engine.push_pull(keys[0], values, values, 0).wait();
    if (engine.rank() == 0) return;
    std::this_thread::sleep_for(200ms);  // worker 0 is leaving
    EXPECT_EQ(values[0], std::ldexp(1.0F, 20));
    try {
      engine.push_pull(keys[0], values, values, 0).wait();
      FAIL() << "summed with a worker that has left";
    } catch (const transport::TransportError& error) {
      EXPECT_THAT(error.what(), HasSubstr("worker 0"));
    }
  });
}

// Neither a first value nor a weight that servers send as deltas is what a round has brought.
TEST(PeersEnd, TheServerOfAWorkerThatHasClosedServesTheOthers) {
  std::latch closed(2);
  run_peers({3}, [&](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {300'000}}, {"b", {5}}, {"c", {5}}});
    for (const KeyId key : keys) {
      const std::uint64_t elements = key == keys[0] ? 300'000 : 5;
      engine.init(key, std::vector<float>(elements, static_cast<float>(key + 1)));
    }
    if (engine.rank() < 2) {
      engine.close();
      closed.count_down();
      return;
    }
    closed.wait();
    for (const KeyId key : keys) {
      std::vector<float> value(key == keys[0] ? 300'000 : 5);
      engine.pull(key, value, 0).wait();
      EXPECT_EQ(value, std::vector<float>(value.size(), static_cast<float>(key + 1)));
    }
  });
}

// As a process does that an error ends.
TEST(PeersEnd, WhatARetiredServerHadFailsAndNamesItsWorker) {
  std::latch retired(1);
  run_peers({2}, [&](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {300'000}}});
    engine.init(keys[0], std::vector<float>(300'000, 1.0F));
    if (engine.rank() == 0) {
      engine.close("ValueError: no");
      engine.retire();
      EXPECT_TRUE(engine.outlast_for(0s));
      retired.count_down();
      return;
    }
    retired.wait();
    std::vector<float> value(300'000);
    try {
      engine.pull(keys[0], value, 0).wait();
      FAIL() << "pulled from a server that has retired";
    } catch (const transport::TransportError& error) {
      EXPECT_THAT(error.what(), HasSubstr("worker 0 failed: ValueError: no"));
    }
  });
}

TEST(PeersEnd, TheFirstFailureReachesAll) {
  std::atomic<int> failed{0};
  run_peers({3}, [&](Engine& engine) {
    std::vector<float> values(400'000, 1.0F);
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {values.size()}}});
    engine.push_pull(keys[0], values, values, 0).wait();
    if (engine.rank() == 1) return;  // the rounds of the others will lack it
    EXPECT_THROW(engine.push_pull(keys[0], values, values, 0).wait(), transport::TransportError);
    ++failed;
  });
  EXPECT_EQ(failed, 2);
}

int threads_named(const std::string& name) {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string line;
    std::getline(std::ifstream(task.path() / "comm"), line);
    count += line == name;
  }
  return count;
}

// What it would sum is the memory of callers, which may free it.
TEST(PeersEnd, TheServerOfAWorkerWhoseJobHasFailedEndsWithClose) {
  std::latch closed(1), counted(1);
  run_peers({2}, [&](Engine& engine) {
    std::vector<float> values(300'000, 1.0F);
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {values.size()}}});
    engine.push_pull(keys[0], values, values, 0).wait();
    if (engine.rank() == 1) {
      engine.close();
      closed.count_down();
      counted.wait();
      return;
    }
    closed.wait();
    const int of_both = threads_named("gw aggregator");
    EXPECT_THROW(engine.push_pull(keys[0], values, values, 0).wait(), transport::TransportError);
    engine.close();
    EXPECT_EQ(threads_named("gw aggregator"), of_both / 2);
    counted.count_down();
  });
}

// Its server keeps the push, and must not keep the caller's memory.
TEST(PeersEnd, WhatAWorkerHasPushedOutlastsItsMemory) {
  run_peers({2}, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {200'000}}});
    auto values = std::make_unique<std::vector<float>>(200'000, static_cast<float>(1 + engine.rank()));
    if (engine.rank() == 1) {
      std::this_thread::sleep_for(2'500ms);
      engine.push_pull(keys[0], *values, *values, 0).wait();
      EXPECT_EQ(*values, std::vector<float>(200'000, 3.0F));
      return;
    }
    engine.push_pull(keys[0], *values, *values, 0);
    engine.close();
    std::ranges::fill(*values, -1000.0F);
    values.reset();
  });
}

}  // namespace
}  // namespace gradwire::kvstore
