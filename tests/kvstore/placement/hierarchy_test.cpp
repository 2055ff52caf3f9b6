// Workers of one host sum first.
#include "kvstore/placement/hierarchy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <latch>
#include <mutex>
#include <thread>

#include "kvstore/collectives/collectives.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

using RunHosts = void (*)(const JobSize&, const Identities&, const std::function<void(Engine&)>&);

void run_served_hosts(const JobSize& size, const Identities& hosts,
                      const std::function<void(Engine&)>& body) {
  run_hosts(size, hosts, body);
}

const Identities kTwoByTwo = {"a", "a", "b", "b"};
/// Leaders 0, 1 and 3, hosts of 2, 1 and 2.
const Identities kUneven = {"a", "b", "a", "c", "c"};

/// What the workers of each host push, summed in rank order; by host.
std::vector<std::vector<float>> host_sums(const Identities& identities, std::size_t n, unsigned seed) {
  std::vector<std::vector<float>> sums;
  for (const auto& members : transport::group_by_host(identities)) {
    std::vector<float> sum = random_floats(n, seed + members[0]);
    for (std::size_t m = 1; m < members.size(); ++m) {
      const auto theirs = random_floats(n, seed + members[m]);
      for (std::size_t i = 0; i < n; ++i) sum[i] += theirs[i];
    }
    sums.push_back(std::move(sum));
  }
  return sums;
}

std::vector<float> sum_of(const std::vector<std::vector<float>>& parts) {
  std::vector<float> sum = parts[0];
  for (std::size_t p = 1; p < parts.size(); ++p) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += parts[p][i];
  }
  return sum;
}

class HierarchyPlacement : public testing::TestWithParam<RunHosts> {
 protected:
  static void run(const Identities& identities, const std::function<void(Engine&)>& body,
                  const JobSize& size = {}) {
    GetParam()(size, identities, body);
  }
};

INSTANTIATE_TEST_SUITE_P(Placements, HierarchyPlacement, testing::Values(run_served_hosts, run_peer_hosts),
                         [](const auto& info) { return info.index == 0 ? "Servers" : "Peers"; });

TEST_P(HierarchyPlacement, DenseSumsAreThoseOfTheHostsSums) {
  for (const Identities& identities : {kTwoByTwo, kUneven, Identities{"a", "a", "a"}, Identities{"a", "b"}}) {
    run(identities, [&](Engine& engine) {
      const std::vector<KeySpec> specs = {{"one", {1}}, {"small", {7}}, {"large", {700'001}}};
      const auto keys = engine.declare(specs);
      for (unsigned step = 0; step < 3; ++step) {
        for (std::size_t k = 0; k < keys.size(); ++k) {
          const auto n = specs[k].elements();
          auto values = random_floats(n, 100 * step + engine.rank());
          engine.push_pull(keys[k], values, values, 0).wait();
          EXPECT_EQ(values, sum_of(host_sums(identities, n, 100 * step)));
        }
      }
    });
  }
}

TEST_P(HierarchyPlacement, DenseSumsAreWithinAnUlpBoundOfFlatOnes) {
  run(kTwoByTwo, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {200'000}}});
    auto values = random_floats(200'000, engine.rank());
    engine.push_pull(keys[0], values, values, 0).wait();
    const auto flat = rank_order_sum(200'000, 0, 4);
    // Three additions each way, each rounded by at most half an ulp of a partial sum below 4 * 0.6.
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], flat[i], 2 * 3 * 0x1p-24F * 2.4F);
  });
}

/// Weights of every rank after a few steps; gradient(step, key, rank) is what a rank pushes.
using Gradient = std::function<std::vector<float>(unsigned step, std::size_t n, std::uint32_t rank)>;
std::function<void(Engine&)> training(const std::string& codec, const std::string& reply,
                                      const Gradient& gradient, std::vector<float>& result) {
  return [=, &result](Engine& engine) {
    engine.compression().set(spec(codec), reply);
    const std::vector<KeySpec> specs = {{"w", {400'000}}, {"b", {300}}};
    const auto keys = engine.declare(specs);
    std::vector<float> last;
    for (unsigned step = 0; step < 4; ++step) {
      for (std::size_t k = 0; k < keys.size(); ++k) {
        auto values = gradient(step, specs[k].elements(), engine.rank());
        engine.push_pull(keys[k], values, values, 0, 0.5F).wait();
        last.insert(last.end(), values.begin(), values.end());
      }
    }
    if (engine.rank() == engine.num_workers() - 1) result = last;
  };
}

TEST_P(HierarchyPlacement, BitsAreThoseOfAFlatJobThatPushesTheHostsSums) {
  for (const auto& [codec, reply] :
       std::vector<std::pair<std::string, std::string>>{{"none", "none"},
                                                        {"fp16", "fp16"},
                                                        {"2bit:threshold=0.25", "exact"},
                                                        {"2bit:threshold=0.25", "2bit"},
                                                        {"2bit:threshold=auto", "exact"},
                                                        {"2bit:threshold=auto", "2bit"}}) {
    std::vector<float> hierarchy, flat;
    run(kUneven, training(
                     codec, reply,
                     [](unsigned step, std::size_t n, std::uint32_t rank) {
                       return random_floats(n, 10 * step + rank);
                     },
                     hierarchy));
    run_job({3, 2}, training(
                        codec, reply,
                        [](unsigned step, std::size_t n, std::uint32_t rank) {
                          return host_sums(kUneven, n, 10 * step)[rank];
                        },
                        flat));
    EXPECT_EQ(hierarchy, flat) << codec << " " << reply;
  }
}

TEST_P(HierarchyPlacement, OnlyLeadersPushAndAllMayHostServers) {
  static constexpr std::uint64_t kUnits = 24;
  std::mutex mutex;
  std::vector<std::uint64_t> sent(4);
  JobSize size{4};
  size.engine.shard_bound_elements = 1;
  run(
      kTwoByTwo,
      [&](Engine& engine) {
        std::vector<float> values(kUnits * compress::kUnitElements, 1.0F);
        const auto keys = engine.declare(std::vector<KeySpec>{{"w", {values.size()}}});
        engine.push_pull(keys[0], values, values, 0).wait();
        engine.barrier();  // all answers are counted where they were sent
        const std::lock_guard lock(mutex);
        for (const auto& peer : engine.metrics().counters()) {
          if (peer.peer.role == transport::Role::kServer) sent[engine.rank()] += peer.counters.bytes_sent;
        }
      },
      size);
  const bool is_peers = GetParam() == RunHosts(run_peer_hosts);
  const std::uint64_t payload = kUnits * compress::kUnitElements * sizeof(float);
  for (const std::uint32_t leader : {0U, 2U}) {
    EXPECT_GE(sent[leader], payload * (is_peers ? 3 : 4) / 4);  // of peers, a quarter is its own
    EXPECT_LE(sent[leader], payload * (is_peers ? 3 : 4) / 4 + 100 * transport::kHeaderBytes);
  }
  EXPECT_EQ(sent[1], 0U);
  EXPECT_EQ(sent[3], 0U);
}

TEST_P(HierarchyPlacement, FirstValuesAreTheRootsAndOptimizersUpdateThem) {
  run(kUneven, [](Engine& engine) {
    const std::vector<KeySpec> specs = {{"w", {5}}, {"large", {300'000}}};
    const auto keys = engine.declare(specs);
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const std::vector<float> mine(specs[k].elements(), static_cast<float>(10 * engine.rank()));
      engine.init(keys[k], mine, 2);
      std::vector<float> out(specs[k].elements());
      engine.pull(keys[k], out, 0).wait();
      EXPECT_EQ(out, std::vector<float>(specs[k].elements(), 20.0F));
    }
    engine.set_optimizer("test rescale_grad=2");
    const std::vector<float> grad(5, 1.0F);
    std::vector<float> out(5);
    engine.push(keys[0], grad, 0);
    engine.pull(keys[0], out, 0).wait();
    EXPECT_EQ(out, std::vector<float>(5, 23.0F));  // three hosts, each 0.5 of what it has, times 2
  });
}

TEST_P(HierarchyPlacement, KeysMayBePushedInAnyOrderAndWithoutWaiting) {
  JobSize size{4};
  size.engine.credit_bytes = 1;
  run(
      kTwoByTwo,
      [](Engine& engine) {
        std::vector<KeySpec> specs;
        for (unsigned k = 0; k < 12; ++k) specs.push_back({std::to_string(k), {70'000}});
        const auto keys = engine.declare(specs);
        std::vector<std::vector<float>> values(keys.size());
        std::vector<Ticket> tickets;
        for (std::size_t i = 0; i < keys.size(); ++i) {
          const std::size_t k = (i * 5 + engine.rank() * 4) % keys.size();
          values[k] = random_floats(70'000, static_cast<unsigned>(10 * k) + engine.rank());
          tickets.push_back(engine.push_pull(keys[k], values[k], values[k], static_cast<std::int32_t>(k)));
        }
        for (const Ticket& ticket : tickets) ticket.wait();
        for (std::size_t k = 0; k < keys.size(); ++k)
          EXPECT_EQ(values[k], sum_of(host_sums(kTwoByTwo, 70'000, static_cast<unsigned>(10 * k))));
        engine.barrier();
      },
      size);
}

TEST_P(HierarchyPlacement, NonfiniteIsReportedOnEveryRank) {
  run(kTwoByTwo, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    const auto key = engine.declare(std::vector<KeySpec>{{"w", {3}}})[0];
    std::vector<float> values(3, 1.0F);
    if (engine.rank() == 1) values[2] = NAN;
    const Ticket bad = engine.push_pull(key, values, values, 0);
    bad.wait();
    EXPECT_TRUE(bad.nonfinite());
    EXPECT_EQ(values, (std::vector<float>{1, 1, 0.5F}));  // the sum of its host sends nothing there
    std::vector<float> zeros(3, 0.0F);
    const Ticket good = engine.push_pull(key, zeros, zeros, 0);
    good.wait();
    EXPECT_FALSE(good.nonfinite());
  });
}

// A sum goes upstream after the push has returned; the codec is that of the push all the same.
TEST_P(HierarchyPlacement, CompressionChangesBetweenRoundsThatNobodyAwaits) {
  run(kTwoByTwo, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {300'000}}});
    const std::vector<float> ones(300'000, 1.0F);
    for (int i = 0; i < 5; ++i) {
      engine.compression().set(spec("none"), "none");  // which sends what 2bit has left, 1.5 of each host
      engine.push(keys[0], ones, 0);
      engine.compression().set(spec("2bit:threshold=0.5"), "exact");
      std::vector<float> out(ones.size());
      engine.pull(keys[0], out, 0).wait();
      EXPECT_EQ(out[299'999], i == 0 ? 4.0F : 7.0F);
      engine.push(keys[0], ones, 0);
      engine.pull(keys[0], out, 0).wait();
      EXPECT_EQ(out[299'999], 1.0F);  // two hosts, 0.5 of each
    }
    engine.barrier();
  });
}

TEST_P(HierarchyPlacement, CollectivesAreThoseOfAllWorkers) {
  run(kUneven, [](Engine& engine) {
    std::vector<float> values = {static_cast<float>(engine.rank())};
    const auto in = std::as_bytes(std::span(values));
    engine.collectives().all_reduce(in, std::as_writable_bytes(std::span(values)), DataType::kFloat32,
                                    ReduceOp::kSum);
    EXPECT_EQ(values[0], 10.0F);
    EXPECT_EQ(engine.meeting().all_gather("names", std::to_string(engine.rank())).size(), 5U);
    engine.barrier();
  });
}

TEST_P(HierarchyPlacement, AWorkerThatLeavesEarlyFailsOnlyWhatStillNeedsItAndIsNamed) {
  for (const std::uint32_t held_pushes : {0U, 3U}) {
    // Servers in other workers may still look at what failed after its worker has closed.
    std::vector<std::vector<float>> all_values(4, std::vector<float>(300'000, 1.0F));
    std::latch failed(3);  // who has failed leaves too, and is named to those who come later
    run(kTwoByTwo, [&](Engine& engine) {
      std::vector<float>& values = all_values[engine.rank()];
      const auto keys = engine.declare(std::vector<KeySpec>{{"w", {values.size()}}});
      for (int step = 0; step < 5; ++step) engine.push_pull(keys[0], values, values, 0).wait();
      if (engine.rank() == held_pushes) return;
      std::this_thread::sleep_for(300ms);
      EXPECT_EQ(values[0], std::ldexp(1.0F, 10));
      try {
        engine.push_pull(keys[0], values, values, 0).wait();
        ADD_FAILURE() << "summed without worker " << held_pushes;
      } catch (const transport::TransportError& error) {
        EXPECT_THAT(error.what(), HasSubstr("worker " + std::to_string(held_pushes)));
      }
      failed.arrive_and_wait();
    });
  }
}

TEST_P(HierarchyPlacement, ARankThatIsMissingIsNamedEverywhere) {
  JobSize size{4};
  size.engine.slow_warning = 300ms;
  size.engine.slow_abort = 2500ms;
  size.engine.retry_timeout = 100ms;
  std::atomic<int> failed{0};
  run(
      kTwoByTwo,
      [&](Engine& engine) {
        const auto keys = engine.declare(std::vector<KeySpec>{{"w", {1000}}});
        std::vector<float> values(1000, 1.0F);
        if (engine.rank() == 3) {
          std::this_thread::sleep_for(4500ms);
          return;
        }
        try {
          engine.push_pull(keys[0], values, values, 0).wait();
          ADD_FAILURE() << "summed without worker 3";
        } catch (const std::exception& error) {
          EXPECT_THAT(error.what(), HasSubstr("for worker 3"));
          ++failed;
        }
      },
      size);
  EXPECT_EQ(failed, 3);
}

/// Nine small slots, which travel as one key, and what is in them after some steps.
std::function<void(Engine&)> slot_training(const std::string& codec, const std::string& reply,
                                           const Gradient& gradient, std::vector<float>& result) {
  return [=, &result](Engine& engine) {
    engine.compression().set(spec(codec), reply);
    std::vector<KeySpec> specs;
    std::vector<std::vector<float>> values;
    for (unsigned i = 0; i < 9; ++i) {
      specs.push_back({std::to_string(i), {100 + i}});
      values.emplace_back(specs.back().elements());
    }
    const auto keys = engine.declare(specs);
    engine.slots().bind(keys, std::vector<ArrayView>(values.begin(), values.end()));
    std::vector<float> last;
    for (unsigned step = 0; step < 4; ++step) {
      for (unsigned i = 0; i < 9; ++i)  // in place: slots stay where they are
        std::ranges::copy(gradient(10 * step + i, values[i].size(), engine.rank()), values[i].begin());
      for (unsigned i = 0; i < 9; ++i) engine.slots().mark_ready(engine.rank() == 0 ? i : 8 - i);
      ASSERT_TRUE(engine.slots().drain_for(20s));
      for (const auto& slot : values) last.insert(last.end(), slot.begin(), slot.end());
    }
    if (engine.rank() == engine.num_workers() - 1) result = last;
    engine.barrier();
  };
}

TEST_P(HierarchyPlacement, SlotsThatTravelTogetherHaveTheBitsOfTheHostsSums) {
  for (const auto& [codec, reply] : std::vector<std::pair<std::string, std::string>>{
           {"none", "none"}, {"2bit:threshold=auto", "exact"}, {"2bit:threshold=0.5", "2bit"}}) {
    std::vector<float> hierarchy, flat;
    run(kUneven, slot_training(
                     codec, reply,
                     [](unsigned step, std::size_t n, std::uint32_t rank) {
                       return random_floats(n, 10 * step + rank);
                     },
                     hierarchy));
    run_job({3, 2}, slot_training(
                        codec, reply,
                        [](unsigned step, std::size_t n, std::uint32_t rank) {
                          return host_sums(kUneven, n, 10 * step)[rank];
                        },
                        flat));
    EXPECT_FALSE(flat.empty());
    EXPECT_EQ(hierarchy, flat) << codec << " " << reply;
  }
}

TEST(Hierarchy, RanksThatDifferAreToldSo) {
  transport::InprocNetwork network(2, 1);
  InprocHosts hosts({"a", "a"});
  Server server(network.connect({transport::Role::kServer, 0}), ServerOptions());
  std::atomic<int> refused{0};
  run_workers(2, [&](std::uint32_t rank) {
    try {
      Engine engine(network.connect({transport::Role::kWorker, rank}), EngineOptions(), nullptr,
                    rank == 0 ? hosts.connector() : ConnectHost());
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("worker 0 has hierarchy=host, worker 1 has nothing"));
      ++refused;
    }
  });
  EXPECT_EQ(refused, 2);
}

TEST_P(HierarchyPlacement, ALeaderThatEndsSendsItsHostsLastSumFirst) {
  run(kTwoByTwo, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {1000}}});
    std::vector<float> values(1000, static_cast<float>(1 + engine.rank()));
    if (engine.rank() == 0) {
      engine.push(keys[0], values, 0);
      return;  // and ends, before its mate has pushed
    }
    if (engine.rank() == 1) std::this_thread::sleep_for(2'500ms);
    engine.push_pull(keys[0], values, values, 0).wait();
    EXPECT_EQ(values, std::vector<float>(1000, 1 + 2 + 3 + 4));
  });
}

TEST(HierarchyBits, DoNotDependOnTheCutWhateverACodecDraws) {
  for (const std::string codec : {"qsgd", "terngrad", "natural", "randomk:ratio=0.1"}) {
    std::vector<std::vector<float>> results;
    for (const std::uint64_t partition : {std::uint64_t{1} << 18, std::uint64_t{1} << 17}) {
      JobSize size;
      size.engine.partition_elements = partition;
      run_hosts(size, kTwoByTwo,
                training(
                    codec, "fp32",
                    [](unsigned step, std::size_t n, std::uint32_t rank) {
                      return random_floats(n, 10 * step + rank);
                    },
                    results.emplace_back()));
    }
    EXPECT_EQ(results[0], results[1]) << codec;
  }
}

}  // namespace
}  // namespace gradwire::kvstore
