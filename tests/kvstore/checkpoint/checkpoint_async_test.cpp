// Jobs in which servers apply every push when it arrives, saved and gone on from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "tests/kvstore/folder.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::uint64_t kElements = 150'000;  // several parts, on all servers
constexpr const char* kOptimizer = "adam learning_rate=0.1";

JobSize async(std::uint32_t workers, std::uint32_t servers,
              std::optional<std::uint64_t> bound = std::nullopt) {
  JobSize size{workers, servers};
  size.engine.async = AsyncPolicy{bound};
  size.engine.shard_bound_elements = 131'072;
  return size;
}

/// One worker's weight.
class Worker {
 public:
  explicit Worker(Engine& engine, const std::string& codec = "none") : engine_(engine) {
    engine.compression().set(spec(codec), "fp32");
    const KeySpec key{"w", {kElements}};
    key_ = engine.declare({&key, 1})[0];
    engine.init(key_, random_floats(kElements, 99));
  }

  KeyId key() const { return key_; }
  void push(unsigned seed) {
    engine_.push(key_, random_floats(kElements, 10 * seed + engine_.rank()), 0).wait();
  }
  std::vector<float> weight() {
    std::vector<float> values(kElements);
    engine_.pull(key_, values, 0).wait();
    return values;
  }
  /// One worker's pushes after the other's, so that the weight is one and the same every time.
  void push_in_turns(const std::vector<unsigned>& pushes) {
    for (std::uint32_t rank = 0; rank < pushes.size(); ++rank) {
      for (unsigned n = 0; rank == engine_.rank() && n < pushes[rank]; ++n) push(n);
      engine_.barrier();
    }
  }

 private:
  Engine& engine_;
  KeyId key_ = 0;
};

/// Saves a job of three workers that have pushed 5, 1 and 2 times, and returns the weight after one push
/// more.
std::vector<float> save(const std::string& folder, const std::string& codec = "none") {
  std::vector<float> undisturbed;
  run_job(async(3, 2), [&](Engine& engine) {
    Worker worker(engine, codec);
    engine.set_optimizer(kOptimizer);
    worker.push_in_turns({5, 1, 2});
    engine.checkpoints().save(folder);
    if (engine.rank() == 0) {
      worker.push(7);
      undisturbed = worker.weight();
    }
    engine.barrier();
  });
  return undisturbed;
}

TEST(CheckpointAtOnce, WeightsAndTheOptimizersStateGoOnWithOtherWorkersAndServers) {
  const Folder folder;
  const auto undisturbed = save(folder.path());
  for (const JobSize& size : {async(3, 2), async(2, 3), async(4, 1, 0)}) {
    std::vector<float> resumed;
    run_job(size, [&](Engine& engine) {
      Worker worker(engine);
      EXPECT_EQ(engine.checkpoints().load(folder.path()).optimizer, kOptimizer);
      if (engine.rank() == 0) {
        worker.push(7);
        resumed = worker.weight();
      }
      engine.barrier();  // where the others wait, so that no bound holds rank 0 back
    });
    EXPECT_EQ(resumed, undisturbed) << size.workers << " workers, " << size.servers << " servers";
  }
}

TEST(CheckpointAtOnce, WhatACodecKeptBackGoesOn) {
  const Folder folder;
  const auto undisturbed = save(folder.path(), "topk");
  std::vector<float> resumed;
  run_job(async(3, 3), [&](Engine& engine) {
    Worker worker(engine, "topk");
    engine.checkpoints().load(folder.path());
    if (engine.rank() == 0) {
      worker.push(7);
      resumed = worker.weight();
    }
    engine.barrier();
  });
  EXPECT_EQ(resumed, undisturbed);
}

TEST(CheckpointAtOnce, TheBoundHoldsAfterwardsForAllWorkersAlike) {
  const Folder folder;
  save(folder.path());
  constexpr std::uint64_t kBound = 2;
  std::array<std::atomic<int>, 2> begun{};
  std::atomic<int> largest_lead = 0;
  run_job(async(2, 1, kBound), [&](Engine& engine) {
    Worker worker(engine);
    engine.checkpoints().load(folder.path());
    for (int step = 0; step < 8; ++step) {
      if (engine.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      ++begun[engine.rank()];
      worker.push(step);
      int lead = largest_lead;
      const int own = step + 1 - begun[1 - engine.rank()];
      while (own > lead && !largest_lead.compare_exchange_weak(lead, own)) {
      }
    }
  });
  EXPECT_LE(largest_lead, static_cast<int>(kBound));
}

// Where the rank that was furthest is gone, the others go on from its step all the same.
TEST(CheckpointAtOnce, GoesOnWhereWorkersGoInStep) {
  const Folder folder;
  save(folder.path());
  JobSize in_step = async(2, 2);
  in_step.engine.async.reset();
  run_job(in_step, [&](Engine& engine) {
    Worker worker(engine);
    engine.checkpoints().load(folder.path());
    const auto before = worker.weight();
    worker.push(1);
    EXPECT_NE(worker.weight(), before);
    engine.checkpoints().save(folder.path());
  });
  run_job(async(1, 1), [&](Engine& engine) {
    Worker worker(engine);
    engine.checkpoints().load(folder.path());
    worker.push(1);
  });
}

TEST(CheckpointAtOnce, WhoIsHeldBackDoesNotKeepOthersFromSaving) {
  const Folder folder;
  run_job(async(2, 1, 0), [&](Engine& engine) {
    Worker worker(engine);
    engine.set_optimizer(kOptimizer);
    for (unsigned n = 0; engine.rank() == 0 && n < 3; ++n)
      engine.push(worker.key(), random_floats(kElements, n), 0);
    engine.checkpoints().save(folder.path());
  });
  run_job(async(2, 1, 0), [&](Engine& engine) {
    Worker worker(engine);
    engine.checkpoints().load(folder.path());
    worker.push(engine.rank());
  });
}

TEST(CheckpointAtOnce, OfSumsIsRefusedByName) {
  const Folder folder;
  JobSize of_sums = async(2, 1);
  of_sums.engine.async.reset();
  run_job(of_sums, [&](Engine& engine) {
    Worker worker(engine);
    worker.push(0);
    engine.checkpoints().save(folder.path());
  });
  run_job(async(2, 1), [&](Engine& engine) {
    Worker worker(engine);
    EXPECT_THAT(
        [&] { engine.checkpoints().load(folder.path()); },
        ThrowsMessage<std::invalid_argument>(HasSubstr("is of no optimizer, so its servers held sums")));
  });
}

}  // namespace
}  // namespace gradwire::kvstore
