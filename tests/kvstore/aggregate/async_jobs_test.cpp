// Whole jobs in which servers apply every push when it arrives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <mutex>

#include "kvstore/collectives/collectives.h"
#include "tests/kvstore/forgetful_line.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using transport::Kind;
using Runner = void (*)(const JobSize&, const std::function<void(Engine&)>&);

constexpr std::uint64_t kElements = 150'000;  // several parts, on all servers

JobSize async(std::uint32_t workers, std::optional<std::uint64_t> bound = std::nullopt) {
  JobSize size{workers, 2};
  size.engine.async = AsyncPolicy{bound};
  size.engine.shard_bound_elements = 131'072;
  return size;
}

/// A weight that begins at zeros and has pushes added to it.
KeyId zero_weight(Engine& engine, std::uint64_t elements = kElements) {
  const KeySpec spec{"w", {elements}};
  const KeyId key = engine.declare({&spec, 1})[0];
  engine.init(key, std::vector<float>(elements, 0.0F));
  engine.set_optimizer("test rescale_grad=1");
  return key;
}

/// The weight once all pushes of all workers are in it.
std::vector<float> settled(Engine& engine, KeyId key, std::uint64_t elements = kElements) {
  std::vector<float> weight(elements);
  engine.barrier();
  engine.pull(key, weight, 0).wait();
  return weight;
}

class AtOncePlacement : public testing::TestWithParam<Runner> {};

TEST_P(AtOncePlacement, EveryPushOfEveryWorkerGoesInOnce) {
  for (const std::string codec : {"none", "fp16", "bf16", "2bit:threshold=0.5"}) {
    GetParam()(async(7), [&](Engine& engine) {
      engine.compression().set(spec(codec), "fp32");
      const KeyId key = zero_weight(engine);
      const std::vector<float> grad(kElements, 0.5F);
      std::vector<float> weight(kElements);
      for (int step = 0; step < 2; ++step) {
        engine.push(key, grad, 0).wait();
        engine.push_pull(key, grad, weight, 0).wait();
      }
      EXPECT_EQ(settled(engine, key), std::vector<float>(kElements, 7 * 4 * 0.5F)) << codec;
    });
  }
}

TEST_P(AtOncePlacement, WhatACodecKeepsBackIsAllThatTheWeightLacks) {
  for (const std::string codec : {"2bit:threshold=0.25", "int8", "int4:block=32", "1bit", "topk"}) {
    std::vector<std::vector<float>> pushed(3, std::vector<float>(kElements)), kept(3);
    std::vector<float> weight;
    GetParam()(async(3), [&](Engine& engine) {
      engine.compression().set(spec(codec), "fp32");
      const KeyId key = zero_weight(engine);
      for (unsigned step = 0; step < 3; ++step) {
        const auto grad = random_floats(kElements, 10 * step + engine.rank());
        for (std::size_t i = 0; i < kElements; ++i) pushed[engine.rank()][i] += grad[i];
        engine.push(key, grad, 0).wait();
      }
      const auto last = settled(engine, key);
      kept[engine.rank()] = engine.residuals().of(key);
      if (engine.rank() == 0) weight = last;
    });
    double largest = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      double lacks = -weight[i];
      for (std::size_t rank = 0; rank < 3; ++rank) lacks += pushed[rank][i] - kept[rank][i];
      largest = std::max(largest, std::abs(lacks));
    }
    EXPECT_LT(largest, 1e-5) << codec;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, AtOncePlacement, testing::Values(run_job, run_peers),
                         [](const auto& row) { return row.param == Runner{run_job} ? "Servers" : "Peers"; });

TEST(AtOnceRounds, NobodyWaitsForAWorkerThatDoesNotPush) {
  run_job(async(2), [](Engine& engine) {
    const KeyId key = zero_weight(engine);
    std::vector<float> values(kElements);
    for (float step = 1; engine.rank() == 0 && step <= 5; ++step) {
      std::ranges::fill(values, 1.0F);
      engine.push_pull(key, values, values, 0).wait();
      EXPECT_EQ(values, std::vector<float>(kElements, step));
    }
    engine.barrier();
    engine.pull(key, values, 0).wait();
    EXPECT_EQ(values, std::vector<float>(kElements, 5.0F));
  });
}

TEST(AtOnceRounds, APullAfterAPushBringsWhatOthersPushedSince) {
  run_job(async(2), [](Engine& engine) {
    const KeyId key = zero_weight(engine);
    const std::vector<float> ones(kElements, 1.0F);
    std::vector<float> weight(kElements);
    engine.push(key, ones, 0).wait();
    EXPECT_EQ(settled(engine, key), std::vector<float>(kElements, 2.0F));
    engine.barrier();
    if (engine.rank() == 1) engine.push(key, ones, 0).wait();
    EXPECT_EQ(settled(engine, key), std::vector<float>(kElements, 3.0F));
  });
}

/// What the workers of a job have seen whose last one is slow.
struct Race {
  static constexpr std::uint32_t kWorkers = 4;
  static constexpr int kSteps = 12;
  std::array<std::atomic<int>, kWorkers> begun{};  ///< pushes that a worker has begun
  std::atomic<int> largest_lead{0};                ///< answered pushes of one before begun ones of another
  std::mutex mutex;
  std::map<std::uint64_t, std::uint64_t> staleness;  ///< of all workers' pushes
};

void race(Race& race, std::optional<std::uint64_t> bound) {
  JobSize size = async(Race::kWorkers, bound);
  size.servers = 1;
  run_job(size, [&](Engine& engine) {
    const KeyId key = zero_weight(engine, 8);
    std::vector<float> values(8);
    for (int step = 0; step < Race::kSteps; ++step) {
      if (engine.rank() == Race::kWorkers - 1) std::this_thread::sleep_for(std::chrono::milliseconds(15));
      std::ranges::fill(values, 1.0F);
      ++race.begun[engine.rank()];
      engine.push_pull(key, values, values, 0).wait();
      for (const auto& other : race.begun) {
        int lead = race.largest_lead;
        while (step + 1 - other > lead && !race.largest_lead.compare_exchange_weak(lead, step + 1 - other)) {
        }
      }
    }
    EXPECT_EQ(settled(engine, key, 8), std::vector<float>(8, Race::kWorkers * Race::kSteps));
    const std::lock_guard lock(race.mutex);
    for (const auto& [staleness, parts] : engine.metrics().staleness()) race.staleness[staleness] += parts;
  });
}

std::uint64_t count_of(const Race& race) {
  std::uint64_t count = 0;
  for (const auto& [staleness, parts] : race.staleness) count += parts;
  return count;
}

TEST(AtOnceRounds, TheBoundHolds) {
  for (const std::uint64_t bound : {0U, 3U}) {
    Race bounded;
    race(bounded, bound);
    EXPECT_LE(bounded.largest_lead, static_cast<int>(bound));
    EXPECT_EQ(count_of(bounded), Race::kWorkers * Race::kSteps);
    // Each of the others is at most `bound` behind when the weight is shown, and as many and one ahead at
    // last.
    EXPECT_LE(bounded.staleness.rbegin()->first, (Race::kWorkers - 1) * (2 * bound + 1));
  }
}

TEST(AtOnceRounds, WithoutABoundFastWorkersRunAheadAndTheSlowOnesPushesAreStale) {
  Race free;
  race(free, std::nullopt);
  EXPECT_GT(free.largest_lead, 3);
  EXPECT_EQ(count_of(free), Race::kWorkers * Race::kSteps);
  EXPECT_GT(free.staleness.rbegin()->first, 2U * (Race::kWorkers - 1));
}

TEST(AtOnceRounds, ABoundOfZeroGivesAllTheSameWeights) {
  std::array<std::vector<std::vector<float>>, 3> seen;
  run_job(async(3, 0), [&](Engine& engine) {
    const KeyId key = zero_weight(engine);
    for (unsigned step = 0; step < 3; ++step) {
      auto values = random_floats(kElements, 10 * step + engine.rank());
      engine.push_pull(key, values, values, 0).wait();
      seen[engine.rank()].push_back(values);
    }
  });
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
}

TEST(AtOnceRounds, AWorkerThatLeavesHoldsNobodyBack) {
  run_job(async(3, 0), [](Engine& engine) {
    const KeyId key = zero_weight(engine);
    std::vector<float> values(kElements);
    const int steps = engine.rank() == 2 ? 2 : 6;
    for (int step = 0; step < steps; ++step) {
      std::ranges::fill(values, 1.0F);
      engine.push_pull(key, values, values, 0).wait();
    }
    if (engine.rank() == 2) return;
    EXPECT_EQ(values, std::vector<float>(kElements, 6 + 6 + 2));
  });
}

/// Worker 0 pushes more than the bound allows, and comes to `collective` late; the others wait there.
void hurry_to(const std::function<void(Engine&)>& collective) {
  JobSize size = async(3, 1);
  size.engine.slow_abort = std::chrono::seconds(30);  // it came to this
  run_job(size, [&](Engine& engine) {
    const KeyId key = zero_weight(engine);
    std::vector<float> values(kElements);
    for (int step = 0; engine.rank() == 0 && step < 5; ++step) {
      std::ranges::fill(values, 1.0F);
      engine.push_pull(key, values, values, 0).wait();
    }
    collective(engine);
    engine.pull(key, values, 0).wait();
    EXPECT_EQ(values, std::vector<float>(kElements, 5.0F));
    engine.barrier();
    const std::vector<float> ones(kElements, 1.0F);  // the bound holds again: all must push to go on
    for (int step = engine.rank() == 0 ? 5 : 0; step < 8; ++step) engine.push(key, ones, 0).wait();
  });
}

// Who was in a collective that failed, since another had left, pushes again, and is waited for again.
TEST(AtOnceRounds, TheBoundHoldsAgainWhereACollectiveHasFailed) {
  std::atomic<int> pushed_by_0{0};
  std::atomic<int> failed{0};
  run_job(async(3, 1), [&](Engine& engine) {
    const KeyId key = zero_weight(engine);
    if (engine.rank() == 2) return;
    const std::vector<float> ones(kElements, 1.0F);
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT([&] { engine.barrier(); },
                  testing::ThrowsMessage<transport::TransportError>(HasSubstr("worker 2")));
    }
    ++failed;
    while (failed < 2) std::this_thread::yield();
    std::vector<float> weight(kElements);
    if (engine.rank() == 0) {
      for (int step = 0; step < 4; ++step) {
        engine.push_pull(key, ones, weight, 0).wait();
        ++pushed_by_0;
      }
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_EQ(pushed_by_0, 1) << "one ahead, and no further";
    for (int step = 0; step < 4; ++step) engine.push_pull(key, ones, weight, 0).wait();
  });
}

TEST(AtOnceRounds, WhoWaitsInACollectiveHoldsNobodyBack) {
  hurry_to([](Engine& engine) { engine.barrier(); });
  hurry_to([](Engine& engine) {
    std::vector<float> values(5);
    engine.collectives().broadcast(std::as_writable_bytes(std::span(values)), DataType::kFloat32, 1);
  });
}

/// Pushes, and answers to them.
bool is_of_a_push(const transport::FrameHeader& header) {
  return header.kind == Kind::kPush || header.kind == Kind::kValue ||
         (header.kind == Kind::kAck && header.count > 0);
}

TEST(AtOnceRounds, WhatWasPushedBeforeABarrierIsInTheWeightBehindIt) {
  JobSize size = async(2, 1);
  size.engine.retry_timeout = std::chrono::milliseconds(50);
  std::atomic<int> lost = 0;
  const auto body = [](Engine& engine) {
    const KeyId key = zero_weight(engine);
    const std::vector<float> ones(kElements, 1.0F);
    std::vector<float> weight(kElements);
    for (int step = 1; step <= 3; ++step) {
      engine.push(key, ones, 0).wait();
      engine.barrier();
      engine.pull(key, weight, 0).wait();
      EXPECT_EQ(weight, std::vector<float>(kElements, 2.0F * static_cast<float>(step)));
      engine.barrier();
    }
  };
  run_wired(size, body, losing_every(3, is_of_a_push, lost));
  EXPECT_GT(lost, 0);
}

TEST(AtOnceRounds, WhatIsLostIsAskedForAgainAndGoesInOnce) {
  JobSize size = async(2, 1);
  size.engine.retry_timeout = std::chrono::milliseconds(50);
  std::atomic<int> lost = 0;
  const auto body = [](Engine& engine) {
    const KeyId key = zero_weight(engine);
    const std::vector<float> ones(kElements, 1.0F);
    std::vector<float> weight(kElements);
    for (int step = 0; step < 3; ++step) {
      engine.push(key, ones, 0).wait();
      engine.push_pull(key, ones, weight, 0).wait();
    }
    EXPECT_EQ(settled(engine, key), std::vector<float>(kElements, 12.0F));
    std::uint64_t parts = 0;
    for (const auto& row : engine.metrics().staleness()) parts += row.second;
    EXPECT_EQ(parts % 6, 0U);  // each part of each push once
    EXPECT_LE(parts, 6U * 8U);
  };
  run_wired(size, body, losing_every(3, is_of_a_push, lost));
  EXPECT_GT(lost, 6);
}

TEST(AtOnceRounds, WeightsInSlotsTakeTheirGradientsPlace) {
  run_job(async(1), [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {2}}, {"b", {2}}});
    std::vector<std::vector<float>> values(2, std::vector<float>(2, 10.0F));
    for (std::size_t i = 0; i < 2; ++i) engine.init(keys[i], values[i]);
    const std::vector<ArrayView> slots(values.begin(), values.end());
    EXPECT_THROW(engine.slots().bind(keys, slots), std::invalid_argument);  // no optimizer yet
    engine.set_optimizer("test rescale_grad=1");
    engine.slots().bind(keys, slots);
    for (auto& v : values) std::ranges::fill(v, 1.0F);
    for (unsigned i = 0; i < 2; ++i) engine.slots().mark_ready(i);
    ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(20)));
    for (const auto& v : values) EXPECT_EQ(v, std::vector<float>(2, 11.0F));
  });
}

TEST(AtOnceRounds, WithoutAnOptimizerAPushIsRefusedOnEveryWorkerAndTheStoreLivesOn) {
  std::atomic<int> refused = 0;
  run_job(async(3), [&](Engine& engine) {
    const KeySpec spec{"w", {5}};
    const KeyId key = engine.declare({&spec, 1})[0];
    std::vector<float> values(5, 1.0F);
    engine.init(key, values);
    const auto is_refusal = testing::ThrowsMessage<std::invalid_argument>(
        HasSubstr("applies each push to the weight at once, and there is no optimizer"));
    EXPECT_THAT([&] { engine.push(key, values, 0); }, is_refusal);
    EXPECT_THAT([&] { engine.push_pull(key, values, values, 0); }, is_refusal);
    ++refused;
    engine.set_optimizer("test rescale_grad=1");
    engine.push(key, values, 0).wait();
    EXPECT_EQ(settled(engine, key, 5), std::vector<float>(5, 4.0F));
  });
  EXPECT_EQ(refused, 3);
}

TEST(AtOnceRounds, ACodecWhoseScaleRoundsAgreeOnIsRefused) {
  run_job(async(2), [](Engine& engine) {
    const auto is_refusal =
        testing::ThrowsMessage<std::invalid_argument>(HasSubstr("give a threshold, as 2bit:threshold=0.5"));
    EXPECT_THAT([&] { engine.compression().set(spec("2bit:threshold=auto"), "exact"); }, is_refusal);
    const KeySpec key{"w", {5}};
    const auto keys = engine.declare({&key, 1});
    EXPECT_THAT([&] { engine.compression().set_of_keys(keys, spec("2bit:threshold=auto"), "exact"); },
                is_refusal);
  });
}

/// What every worker's Engine throws when they are opened with these options.
void expect_refused(const std::vector<EngineOptions>& by_rank, const std::string& text) {
  const auto workers = static_cast<std::uint32_t>(by_rank.size());
  transport::InprocNetwork network(workers, 1);
  Server server(network.connect({transport::Role::kServer, 0}), {});
  run_workers(workers, [&](std::uint32_t rank) {
    EXPECT_THAT(
        [&] {
          Engine(network.connect({transport::Role::kWorker, rank}), by_rank[rank]);
        },
        testing::ThrowsMessage<std::invalid_argument>(HasSubstr(text)));
  });
}

TEST(AtOnceRounds, WorkersThatDifferInThemAreToldSo) {
  const EngineOptions bound_of_four = async(1, 4).engine, free = async(1).engine;
  EngineOptions plain = bound_of_four;
  plain.async.reset();
  expect_refused({plain, bound_of_four},
                 "worker 0 has nothing, worker 1 has rounds=at_once staleness_bound=4");
  expect_refused({free, bound_of_four},
                 "worker 0 has rounds=at_once, worker 1 has rounds=at_once staleness_bound=4");
}

TEST(AtOnceRounds, GoWithNeitherALibraryThatSumsNorAHostThatDoes) {
  const auto is_refusal =
      testing::ThrowsMessage<std::invalid_argument>(HasSubstr("leave one of the two out"));
  EXPECT_THAT([] { run_native(async(1), [](Engine&) {}); }, is_refusal);
  transport::InprocNetwork network(1, 1);
  EXPECT_THAT(
      [&] {
        Engine(network.connect({transport::Role::kWorker, 0}), async(1).engine, nullptr,
               [](transport::Messenger&) { return transport::HostLink(); });
      },
      is_refusal);
}

}  // namespace
}  // namespace gradwire::kvstore
