// What push() may take of rounds that cannot begin yet is bounded, and nothing else changes by that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "kvstore/engine/engine.h"
#include "kvstore/rows/sparse_rows.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using Body = std::function<void(Engine&)>;
using Runner = void (*)(const JobSize&, const Body&);

constexpr std::size_t kElements = 1000;
constexpr std::uint64_t kPushBytes = kElements * sizeof(float) + 1024;  // with what is kept beside it
constexpr std::uint64_t kUnbounded = std::uint64_t{1} << 62;
constexpr int kRounds = 10;
constexpr auto kLong = 60s;  // for what takes milliseconds

void run_on_a_host(const JobSize& size, const Body& body) { run_hosts(size, {"x", "x"}, body); }

JobSize bounded_by(std::uint64_t bytes) {
  JobSize size{2, 2};
  size.engine.push_ahead_bytes = bytes;
  return size;
}

std::vector<float> gradient(std::uint32_t rank, int round) {
  return random_floats(kElements, 100 * static_cast<unsigned>(round) + rank);
}

/// Returns once the engine's thread has done what was posted before.
void await_thread(Engine& engine) { engine.residuals().share_sent(); }

class PushAhead : public testing::TestWithParam<Runner> {};
constexpr const char* kNames[] = {"Servers", "Peers", "Library", "Host"};
INSTANTIATE_TEST_SUITE_P(All, PushAhead, testing::Values(run_job, run_peers, run_native, run_on_a_host),
                         [](const auto& info) { return kNames[info.index]; });

/// What rank 1 sees of rounds that rank 0 has pushed all at once, before rank 1 began the first.
std::vector<std::vector<float>> sums_seen(Runner run, std::uint64_t bound, const std::string& codec) {
  std::vector<std::vector<float>> sums;
  std::promise<void> pushed;
  run(bounded_by(bound), [&](Engine& engine) {
    engine.compression().set(spec(codec), codec == "none" ? "none" : "fp32");
    const KeySpec named{"w", {kElements}};
    const KeyId key = engine.declare({&named, 1})[0];
    if (engine.rank() == 0) {
      std::vector<std::vector<float>> gradients;
      for (int round = 0; round < kRounds; ++round) gradients.push_back(gradient(0, round));
      std::vector<BegunPush> pushes;
      for (const auto& each : gradients) pushes.push_back(engine.begin_push(key, each, 0));
      const auto room = static_cast<int>(std::min<std::uint64_t>(bound / kPushBytes, kRounds - 1));
      for (int round = 0; round <= room; ++round) pushes[round].taken.wait();
      await_thread(engine);
      EXPECT_EQ(engine.metrics().ahead_bytes(), room * kPushBytes);
      for (int round = room + 1; round < kRounds; ++round)
        EXPECT_FALSE(pushes[round].taken.done()) << "round " << round;
      pushed.set_value();
      for (int round = 0; round < kRounds; ++round) {
        pushes[round].taken.wait();
        std::ranges::fill(gradients[round], 1e9F);  // it is the caller's again
      }
      std::vector<float> last(kElements);
      engine.pull(key, last, 0).wait();
      EXPECT_EQ(engine.metrics().ahead_bytes(), 0U);
      sums.push_back(last);
    } else {
      pushed.get_future().wait();
      std::vector<std::vector<float>> own;
      for (int round = 0; round < kRounds; ++round) {
        auto& values = own.emplace_back(gradient(1, round));
        engine.push_pull(key, values, values, 0).wait();
      }
      engine.barrier();
      sums.insert(sums.begin(), own.begin(), own.end());
    }
    if (engine.rank() == 0) engine.barrier();
  });
  return sums;
}

TEST_P(PushAhead, TakesNoMoreThanItsBoundAndChangesNoBit) {
  for (const char* codec : {"none", "2bit:threshold=0.25"}) {
    const auto reference = sums_seen(GetParam(), kUnbounded, codec);
    ASSERT_EQ(reference.size(), kRounds + 1U);
    if (std::string(codec) == "none") {
      for (int round = 0; round < kRounds; ++round)
        EXPECT_EQ(reference[round], rank_order_sum(kElements, 100 * static_cast<unsigned>(round), 2));
    }
    for (const std::uint64_t bound : {std::uint64_t{0}, 3 * kPushBytes + 100})
      EXPECT_EQ(sums_seen(GetParam(), bound, codec), reference) << codec << " within " << bound;
  }
}

TEST(PushAheadOfSeveralKeys, SharesOneBound) {
  std::promise<void> pushed;
  run_job(bounded_by(3 * kPushBytes), [&](Engine& engine) {
    const std::vector<KeySpec> specs = {{"a", {kElements}}, {"b", {kElements}}};
    const auto keys = engine.declare(specs);
    std::vector<BegunPush> pushes;
    const auto value = gradient(engine.rank(), 0);
    const auto push_all = [&] {
      for (int round = 0; round < 4; ++round) {
        for (const KeyId key : keys) pushes.push_back(engine.begin_push(key, value, 0));
      }
    };
    if (engine.rank() == 1) pushed.get_future().wait();
    push_all();
    if (engine.rank() == 0) {
      await_thread(engine);
      EXPECT_EQ(engine.metrics().ahead_bytes(), 3 * kPushBytes);
      pushed.set_value();
    }
    for (const BegunPush& push : pushes) push.done.wait();
    EXPECT_EQ(engine.metrics().ahead_bytes(), 0U);
    engine.barrier();
  });
}

// Whoever is behind holds up whoever is ahead, and never the other way round.
TEST(PushAheadOfSeveralKeys, NeverStandsStillWhereWorkersPushInOneOrder) {
  std::vector<std::vector<float>> results(3);
  JobSize size = bounded_by(kPushBytes);
  size.workers = 3;
  run_job(size, [&](Engine& engine) {
    std::vector<KeySpec> specs;
    for (int k = 0; k < 4; ++k) specs.push_back({std::to_string(k), {kElements}});
    const auto keys = engine.declare(specs);
    for (int round = 0; round < 8; ++round) {
      for (std::size_t k = 0; k < keys.size(); ++k)
        engine.push(keys[k], gradient(engine.rank(), round + static_cast<int>(k)),
                    -static_cast<std::int32_t>(k));
    }
    auto& result = results[engine.rank()];
    for (const KeyId key : keys) {
      std::vector<float> out(kElements);
      engine.pull(key, out, 0).wait();
      result.insert(result.end(), out.begin(), out.end());
    }
    EXPECT_EQ(engine.metrics().ahead_bytes(), 0U);
    engine.barrier();
  });
  std::vector<float> expected;
  for (unsigned k = 0; k < 4; ++k) {
    const auto sum = rank_order_sum(kElements, 100 * (7 + k), 3);
    expected.insert(expected.end(), sum.begin(), sum.end());
  }
  EXPECT_THAT(results, Each(expected));
}

TEST(PushAheadOfSeveralThreads, KeepsEachThreadsOrder) {
  run_job(bounded_by(kPushBytes), [](Engine& engine) {
    const std::vector<KeySpec> specs = {{"a", {kElements}}, {"b", {kElements}}};
    const auto keys = engine.declare(specs);
    {
      std::vector<std::jthread> threads;
      for (const KeyId key : keys) {
        threads.emplace_back([&engine, key] {
          for (int round = 0; round < 8; ++round) engine.push(key, gradient(engine.rank(), round), 0);
        });
      }
    }
    for (const KeyId key : keys) {
      std::vector<float> out(kElements);
      engine.pull(key, out, 0).wait();
      EXPECT_EQ(out, rank_order_sum(kElements, 700, 2));
    }
    engine.barrier();
  });
}

TEST(PushAheadOfFloat64, CountsItsBytes) {
  std::promise<void> pushed;
  run_job(bounded_by(2 * (2 * kElements * sizeof(float) + 1024)), [&](Engine& engine) {
    const KeySpec named{"w", {kElements}, "float64"};
    const KeyId key = engine.declare({&named, 1})[0];
    const std::vector<double> value(kElements, 1 + 0x1p-40);
    if (engine.rank() == 1) pushed.get_future().wait();
    std::vector<BegunPush> pushes;
    for (int round = 0; round < 5; ++round) pushes.push_back(engine.begin_push(key, value, 0));
    if (engine.rank() == 0) {
      await_thread(engine);
      EXPECT_EQ(engine.metrics().ahead_bytes(), 2 * (2 * kElements * sizeof(float) + 1024));
      pushed.set_value();
    }
    for (const BegunPush& push : pushes) push.done.wait();
    std::vector<double> out(kElements);
    engine.pull(key, out, 0).wait();
    EXPECT_THAT(out, Each(2 + 0x1p-39));
    engine.barrier();
  });
}

// ------------------------------------------------------------------------------------- waits that fail

/// What ranks' pushes end with.
std::vector<std::string> errors_of(JobSize size, const Body& body) {
  std::vector<std::string> errors(size.workers);
  try {
    run_job(size, [&](Engine& engine) {
      try {
        body(engine);
        errors[engine.rank()] = "no error";
      } catch (const std::exception& error) {
        errors[engine.rank()] = error.what();
      }
    });
  } catch (const transport::TransportError&) {  // NOLINT(bugprone-empty-catch): servers hear of it too
  }
  return errors;
}

TEST(PushAheadOfAWorkerThatDoesNotCome, FailsAndNamesIt) {
  std::promise<void> failed;
  JobSize size = bounded_by(0);
  size.engine.slow_warning = 100ms;
  size.engine.slow_abort = 4s;
  const auto errors = errors_of(size, [&](Engine& engine) {
    const KeySpec named{"w", {kElements}};
    const KeyId key = engine.declare({&named, 1})[0];
    if (engine.rank() == 1) {
      ASSERT_EQ(failed.get_future().wait_for(kLong), std::future_status::ready);
      return;
    }
    const std::vector<float> value(kElements);
    engine.push(key, value, 0);
    try {
      engine.push(key, value, 0);
      failed.set_value();
    } catch (...) {
      failed.set_value();
      throw;
    }
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("key 'w' step 0 has waited"), HasSubstr("for worker 1")));
}

TEST(PushAheadInOppositeOrders, FailsAtOnceForAll) {
  const auto errors = errors_of(bounded_by(0), [&](Engine& engine) {
    const std::vector<KeySpec> specs = {{"first", {kElements}}, {"second", {kElements}}};
    auto keys = engine.declare(specs);
    if (engine.rank() == 1) std::swap(keys[0], keys[1]);
    const std::vector<float> value(kElements);
    for (const KeyId key : keys) {
      for (int round = 0; round < 2; ++round) engine.push(key, value, 0);
    }
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("worker 0 in push, round 0 of key 'first'"),
                                 HasSubstr("worker 1 in push, round 0 of key 'second'"))));
}

// ------------------------------------------------------------------------------------- rows

const std::vector<std::int64_t> kIds = {3, 8, 11};

std::vector<float> rows_of(std::uint32_t rank, int round) {
  return random_floats(3 * 50, 100 * static_cast<unsigned>(round) + rank);
}

/// Sums that rank 1 sees; most: what rank 0 has had on its way at most.
std::vector<std::vector<float>> row_sums(Runner run, std::uint64_t bound, std::uint64_t& most) {
  std::vector<std::vector<float>> sums;
  std::promise<void> full;
  run(bounded_by(bound), [&](Engine& engine) {
    SparseRows& sparse = engine.sparse();
    const KeySpec named{"table", {20, 50}};
    const TableId table = sparse.declare({&named, 1})[0];
    if (engine.rank() == 0) {
      int round = 0;
      for (; round < kRounds && !sparse.room(table); ++round) sparse.push(table, kIds, rows_of(0, round), 0);
      most = engine.metrics().ahead_bytes();
      if (round < kRounds) {
        EXPECT_FALSE(sparse.room(table)->done());
      }
      full.set_value();
      for (; round < kRounds; ++round) {
        sparse.push(table, kIds, rows_of(0, round), 0);
        most = std::max(most, engine.metrics().ahead_bytes());
      }
      sparse.pull(table, kIds, 0).done.wait();
      sparse.pull(table, kIds, 0).done.wait();  // which gives back what the one before has ended
      EXPECT_EQ(engine.metrics().ahead_bytes(), 0U);
    } else {
      full.get_future().wait();
      for (int round = 0; round < kRounds; ++round) {
        const auto pulled = sparse.push_pull(table, kIds, rows_of(1, round), 0);
        pulled.done.wait();
        sums.push_back(sparse.rows_of(pulled).values);
      }
    }
    engine.barrier();
  });
  return sums;
}

class RowsAhead : public testing::TestWithParam<Runner> {};
INSTANTIATE_TEST_SUITE_P(All, RowsAhead, testing::Values(run_job, run_peers),
                         [](const auto& info) { return kNames[info.index]; });

TEST_P(RowsAhead, AreBoundedAndNoBitChanges) {
  std::uint64_t most = 0;
  const auto reference = row_sums(GetParam(), kUnbounded, most);
  for (int round = 0; round < kRounds; ++round)
    EXPECT_EQ(reference[round], rank_order_sum(3 * 50, 100 * static_cast<unsigned>(round), 2));
  const std::uint64_t one = most / kRounds;
  for (const std::uint64_t bound : {std::uint64_t{0}, 4 * one}) {
    EXPECT_EQ(row_sums(GetParam(), bound, most), reference) << "within " << bound;
    EXPECT_LE(most, bound + one);
  }
}

TEST(RowsAheadAtOnce, WaitForServersAlone) {
  JobSize size = bounded_by(0);
  size.engine.async = AsyncPolicy{};
  std::promise<void> pushed;
  run_job(size, [&](Engine& engine) {
    SparseRows& sparse = engine.sparse();
    const KeySpec named{"table", {20, 50}};
    const TableId table = sparse.declare({&named, 1})[0];
    sparse.init(table, {}, {}, 0);
    engine.set_optimizer("test");
    if (engine.rank() == 0) {
      for (int round = 0; round < kRounds; ++round) sparse.push(table, kIds, rows_of(0, round), 0);
      pushed.set_value();
    } else {
      ASSERT_EQ(pushed.get_future().wait_for(kLong), std::future_status::ready);
    }
    engine.barrier();
  });
}

TEST(RowsAheadOfAWorkerInABarrier, FailAtOnceForAll) {
  const auto errors = errors_of(bounded_by(0), [&](Engine& engine) {
    SparseRows& sparse = engine.sparse();
    const KeySpec named{"table", {20, 50}};
    const TableId table = sparse.declare({&named, 1})[0];
    if (engine.rank() == 1) return engine.barrier();
    for (int round = 0; round < 2; ++round) sparse.push(table, kIds, rows_of(0, round), 0);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("worker 0 in push, round 0 of table 0"),
                                 HasSubstr("worker 1 in 'barrier'"))));
}

}  // namespace
}  // namespace gradwire::kvstore
