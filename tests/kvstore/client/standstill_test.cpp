// Workers whose calls wait for one another fail at once, all of them, and hear who is in what.
#include "kvstore/client/standstill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "kvstore/collectives/collectives.h"
#include "kvstore/rows/sparse_rows.h"
#include "tests/kvstore/folder.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Body = std::function<void(Engine&)>;
using Runner = void (*)(const JobSize&, const Body&);

void run_on_hosts(const JobSize& size, const Body& body) { run_hosts(size, {"x", "x", "y"}, body); }

class Standstills : public testing::TestWithParam<Runner> {};
constexpr const char* kNames[] = {"Servers", "Peers", "Native", "Hosts"};
INSTANTIATE_TEST_SUITE_P(All, Standstills, testing::Values(run_job, run_peers, run_native, run_on_hosts),
                         [](const auto& info) { return kNames[info.index]; });

/// What ranks make of calls of which rank 0's is another than the others': the same error on all.
std::vector<std::string> errors_of(Runner run, const std::function<void(Engine&, KeyId, KeyId)>& odd,
                                   const std::function<void(Engine&, KeyId, KeyId)>& others) {
  std::vector<std::string> errors(3);
  const auto worker = [&](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"first", {9}}, {"second", {9}}});
    try {
      (engine.rank() == 0 ? odd : others)(engine, keys[0], keys[1]);
      errors[engine.rank()] = "no error";
    } catch (const transport::CallMismatch& mismatch) {
      errors[engine.rank()] = mismatch.what();
    } catch (const std::exception& error) {
      errors[engine.rank()] = std::string("another error: ") + error.what();
    }
  };
  try {
    run({3, 2}, worker);
  } catch (const transport::TransportError&) {  // NOLINT(bugprone-empty-catch): servers hear of it too
  }
  return errors;
}

void round_of(Engine& engine, KeyId key) {
  std::vector<float> values(9, 1.0F);
  engine.push_pull(key, values, values, 0).wait();
}

TEST_P(Standstills, ABarrierAndARound) {
  const auto errors = errors_of(
      GetParam(), [](Engine& engine, KeyId, KeyId) { engine.barrier(); },
      [](Engine& engine, KeyId first, KeyId) { round_of(engine, first); });
  EXPECT_THAT(errors, testing::Each(AllOf(HasSubstr("worker 0 in 'barrier'"),
                                          HasSubstr("in push_pull, round 0 of key 'first'"))));
}

TEST_P(Standstills, RoundsOfTwoKeys) {
  const auto errors = errors_of(
      GetParam(), [](Engine& engine, KeyId first, KeyId) { round_of(engine, first); },
      [](Engine& engine, KeyId, KeyId second) { round_of(engine, second); });
  // Where a library sums, it may find that itself.
  EXPECT_THAT(errors, testing::Each(testing::AnyOf(AllOf(HasSubstr("key 'first'"), HasSubstr("key 'second'")),
                                                   HasSubstr("another error: "))));
}

TEST_P(Standstills, APushThatNobodyPullsHoldsUpWhatWaitsForIt) {
  const auto errors = errors_of(
      GetParam(),
      [](Engine& engine, KeyId first, KeyId) {
        engine.push(first, std::vector<float>(9), 0);
        engine.compression().set(spec("fp16"), "fp32");
      },
      [](Engine& engine, KeyId, KeyId) { engine.compression().set(spec("fp16"), "fp32"); });
  EXPECT_THAT(errors,
              testing::Each(AllOf(HasSubstr("set_gradient_compression, behind round 0 of key 'first'"),
                                  HasSubstr("in 'compression'"))));
}

TEST_P(Standstills, UnequalNumbersOfRounds) {
  const auto errors = errors_of(
      GetParam(),
      [](Engine& engine, KeyId first, KeyId) {
        for (int i = 0; i < 3; ++i) round_of(engine, first);
        engine.barrier();
      },
      [](Engine& engine, KeyId first, KeyId) {
        for (int i = 0; i < 5; ++i) round_of(engine, first);
        engine.barrier();
      });
  EXPECT_THAT(errors,
              testing::Each(AllOf(HasSubstr("worker 0 in 'barrier'"), HasSubstr("round 3 of key 'first'"))));
}

TEST(StandstillsOfRows, ARoundOfATableAndABarrier) {
  const auto errors = errors_of(
      run_job,
      [](Engine& engine, KeyId, KeyId) {
        engine.sparse().declare(std::vector{KeySpec{"table", {6, 2}}});
        engine.barrier();
      },
      [](Engine& engine, KeyId, KeyId) {
        const auto table = engine.sparse().declare(std::vector{KeySpec{"table", {6, 2}}}).front();
        engine.sparse()
            .push_pull(table, std::vector<std::int64_t>{1}, std::vector<float>{1, 2}, 0)
            .done.wait();
      });
  EXPECT_THAT(errors, testing::Each(AllOf(HasSubstr("worker 0 in 'barrier'"),
                                          HasSubstr("push_pull, round 0 of table 0"))));
}

TEST(StandstillsOfJoin, ARoundThatNobodyJoinsAndABarrier) {
  const auto errors = errors_of(
      run_job,
      [](Engine& engine, KeyId first, KeyId) {
        engine.push(first, std::vector<float>(9), 0);
        engine.join();
      },
      [](Engine& engine, KeyId, KeyId) { engine.barrier(); });
  EXPECT_THAT(errors, testing::Each(AllOf(HasSubstr("worker 0 in join, behind round 0 of key 'first'"),
                                          HasSubstr("in 'barrier'"))));
}

TEST(StandstillsAtOnce, PushesAheadOfOneThatIsAheadElsewhere) {
  JobSize size{2, 1};
  size.engine.async = AsyncPolicy{1};
  std::vector<std::string> errors(2);
  try {
    run_job(size, [&](Engine& engine) {
      const auto keys = engine.declare(std::vector<KeySpec>{{"first", {9}}, {"second", {9}}});
      for (const KeyId key : keys) engine.init(key, std::vector<float>(9));
      engine.set_optimizer("test");
      try {
        for (int i = 0; i < 9; ++i) round_of(engine, keys[engine.rank()]);
        errors[engine.rank()] = "no error";
      } catch (const transport::CallMismatch& mismatch) {
        errors[engine.rank()] = mismatch.what();
      }
    });
  } catch (const transport::TransportError&) {  // NOLINT(bugprone-empty-catch): servers hear of it too
  }
  EXPECT_THAT(errors, testing::Each(AllOf(HasSubstr("of key 'first'"), HasSubstr("of key 'second'"))));
}

// ------------------------------------------------------------------------------------- what is none

TEST(StandstillsOfThreads, OneThatIsAtWorkHoldsUpTheVerdict) {
  std::mutex mutex;
  std::condition_variable changed;
  int in_barrier = 0;
  run_job({3, 2}, [&](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"first", {9}}});
    std::jthread pushing([&] {
      round_of(engine, keys[0]);
      if (engine.rank() ==
          0) {  // at work for as long as others wait in a round, and this worker in a barrier
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return in_barrier == 1; });
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      }
      round_of(engine, keys[0]);
    });
    if (engine.rank() != 0) pushing.join();
    if (engine.rank() == 0) {
      const std::lock_guard lock(mutex);
      in_barrier = 1;
      changed.notify_all();
    }
    engine.barrier();
  });
}

TEST_P(Standstills, PushesAreNotWaitedFor) {
  GetParam()({3, 2}, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"first", {9}}});
    const std::vector<float> values(9, 1.0F);
    if (engine.rank() == 0) engine.barrier();
    engine.push(keys[0], values, 0);
    if (engine.rank() != 0) engine.barrier();  // its own push does not hold it up
    std::vector<float> out(9);
    engine.pull(keys[0], out, 0).wait();
    EXPECT_THAT(out, testing::Each(3));
  });
}

}  // namespace
}  // namespace gradwire::kvstore
