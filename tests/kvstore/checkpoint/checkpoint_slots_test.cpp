// Slots that share a bucket, where servers get an optimizer, from a checkpoint or otherwise: a weight is one
// key, so each goes alone from then on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kvstore/folder.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<KeySpec> kKeys = {{"a", {500}}, {"b", {70}}, {"c", {9}}};

/// One worker's part of a job.
class Worker {
 public:
  explicit Worker(Engine& engine, const std::string& codec = "topk") : engine_(engine) {
    engine.compression().set(spec(codec), "fp32");
    keys_ = engine.declare(kKeys);
    for (std::size_t k = 0; k < kKeys.size(); ++k) {
      engine.init(keys_[k], random_floats(kKeys[k].elements(), 99));
      values_.emplace_back(kKeys[k].elements());
    }
    engine.slots().bind(keys_, std::vector<ArrayView>(values_.begin(), values_.end()));
  }

  /// Returns what took the gradients' place.
  std::vector<float> step(unsigned number) {
    std::vector<float> all;
    for (std::uint32_t slot = 0; slot < values_.size(); ++slot) {
      const unsigned seed = 100 * number + 10 * slot + engine_.rank();
      std::ranges::copy(random_floats(values_[slot].size(), seed), values_[slot].begin());
      engine_.slots().mark_ready(slot);
    }
    EXPECT_TRUE(engine_.slots().drain_for(std::chrono::seconds(60)));
    for (const auto& values : values_) all.insert(all.end(), values.begin(), values.end());
    return all;
  }
  KeyId key(std::size_t index) const { return keys_[index]; }

 private:
  Engine& engine_;
  std::vector<KeyId> keys_;
  std::vector<std::vector<float>> values_;
};

TEST(SlotsAndOptimizers, ACheckpointsOptimizerTakesSlotsOutOfTheirBucket) {
  const Folder folder;
  std::vector<float> undisturbed, resumed;
  run_job({2, 2}, [&](Engine& engine) {
    engine.set_optimizer("adam");
    Worker worker(engine);  // each slot goes alone
    worker.step(0);
    worker.step(1);
    engine.checkpoints().save(folder.path());
    const auto weights = worker.step(2);
    if (engine.rank() == 0) undisturbed = weights;
  });
  run_job({2, 2}, [&](Engine& engine) {
    Worker worker(engine);  // all share a bucket
    EXPECT_EQ(engine.checkpoints().load(folder.path()).optimizer, "adam");
    const auto weights = worker.step(2);
    if (engine.rank() == 0) resumed = weights;
  });
  EXPECT_EQ(resumed, undisturbed);
}

TEST(SlotsAndOptimizers, SlotsTakeTheirResidualsAlong) {
  run_job({2, 1}, [](Engine& engine) {
    Worker worker(engine);
    const auto owed = random_floats(kKeys[1].elements(), engine.rank());
    engine.residuals().set(worker.key(1), owed);
    engine.set_optimizer("test");
    EXPECT_EQ(engine.residuals().of(worker.key(1)), owed);
    worker.step(0);
    EXPECT_NE(engine.residuals().of(worker.key(1)), owed);
  });
}

TEST(SlotsAndOptimizers, NotDuringAStep) {
  run_job({1, 1}, [](Engine& engine) {
    Worker worker(engine);
    engine.slots().mark_ready(0);
    EXPECT_THAT([&] { engine.set_optimizer("test"); },
                ThrowsMessage<std::logic_error>(HasSubstr("1 of 3 slots are marked; drain it first")));
    for (const std::uint32_t slot : {1U, 2U}) engine.slots().mark_ready(slot);
    ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(60)));
    engine.set_optimizer("test");
    worker.step(0);
  });
}

}  // namespace
}  // namespace gradwire::kvstore
