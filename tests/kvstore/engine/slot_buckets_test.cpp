#include "kvstore/engine/slot_buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "tests/kvstore/job.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;
using namespace std::chrono_literals;

/// Slots of so many elements each, front layer first, all of one value.
struct Bound {
  Bound(Engine& engine, const std::vector<std::size_t>& elements) {
    std::vector<KeySpec> specs;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      specs.push_back({"layer " + std::to_string(i), {elements[i]}});
      values.emplace_back(elements[i]);
    }
    const auto keys = engine.declare(specs);
    for (std::size_t i = 0; i < keys.size(); ++i) engine.init(keys[i], values[i]);
    engine.slots().bind(keys, std::vector<ArrayView>(values.begin(), values.end()));
  }
  void fill(float value) {
    for (auto& of_slot : values) std::ranges::fill(of_slot, value);
  }

  std::vector<std::vector<float>> values;
};

/// 1000 bytes a bucket: slots 2 and 3 share one, so do 0 and 1, and 4 is alone.
JobSize two_by_two(std::uint32_t workers) {
  JobSize size{workers, 1};
  size.engine.fusion_bytes = 1000;
  return size;
}
const std::vector<std::size_t> kElements = {100, 150, 100, 150, 300};

TEST(EngineSlots, ThoseThatTravelTogetherShareATicket) {
  run_job(two_by_two(2), [](Engine& engine) {
    EXPECT_TRUE(engine.slots().sums().empty()) << "nothing is bound";
    Bound bound(engine, kElements);
    for (int step = 1; step < 4; ++step) {
      bound.fill(static_cast<float>(step));
      for (std::uint32_t slot = 5; slot-- > 1;) engine.slots().mark_ready(slot);
      EXPECT_THROW(engine.slots().sums(), std::logic_error) << "slot 0 is not marked";
      engine.slots().mark_ready(0);
      std::vector<std::vector<std::uint32_t>> together;
      for (const SlotSum& sum : engine.slots().sums()) {
        ASSERT_TRUE(sum.done.wait_for(20s));
        for (const std::uint32_t slot : sum.slots)
          EXPECT_EQ(bound.values[slot], std::vector<float>(kElements[slot], 2.0F * static_cast<float>(step)));
        together.push_back(sum.slots);
      }
      EXPECT_THAT(together, UnorderedElementsAre(ElementsAre(4), ElementsAre(3, 2), ElementsAre(1, 0)));
      EXPECT_THROW(engine.slots().mark_ready(1), std::logic_error) << "the step has not ended";
      EXPECT_TRUE(engine.slots().drain_for(0ms));
    }
  });
}

TEST(EngineSlots, ThoseThatAreWeightsHaveATicketEach) {
  run_job(two_by_two(1), [](Engine& engine) {
    engine.set_optimizer("test rescale_grad=1");
    Bound bound(engine, kElements);
    for (std::uint32_t slot = 0; slot < 5; ++slot) engine.slots().mark_ready(slot);
    std::vector<std::vector<std::uint32_t>> alone;
    for (const SlotSum& sum : engine.slots().sums()) alone.push_back(sum.slots);
    EXPECT_THAT(alone, UnorderedElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3),
                                            ElementsAre(4)));
    EXPECT_TRUE(engine.slots().drain_for(20s));
  });
}

// What the next forward pass uses first must not wait for what it uses last.
TEST(EngineSlots, SumsOfFrontLayersAreThereBeforeABackLayerIsSent) {
  std::promise<void> front_is_there;
  std::shared_future<void> front = front_is_there.get_future().share();
  run_job(two_by_two(2), [&](Engine& engine) {
    Bound bound(engine, kElements);
    bound.fill(1);
    for (const std::uint32_t slot : {1, 0}) engine.slots().mark_ready(slot);
    if (engine.rank() == 1) {
      ASSERT_EQ(front.wait_for(20s), std::future_status::ready);
    }
    for (const std::uint32_t slot : {4, 3, 2}) engine.slots().mark_ready(slot);
    for (const SlotSum& sum : engine.slots().sums()) {
      if (engine.rank() == 1) continue;
      if (sum.slots.back() != 0) {
        EXPECT_FALSE(sum.done.done());
        continue;
      }
      ASSERT_TRUE(sum.done.wait_for(20s));
      EXPECT_EQ(bound.values[0], std::vector<float>(kElements[0], 2.0F));
      front_is_there.set_value();
    }
    EXPECT_TRUE(engine.slots().drain_for(20s));
  });
}

TEST(EngineSlots, AsManyPrioritiesAsKeysAreWanted) {
  run_job({1, 1}, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {2}}, {"b", {2}}});
    std::vector<std::vector<float>> values(2, std::vector<float>(2));
    const std::vector<std::int32_t> one = {0};
    EXPECT_THROW(
        engine.slots().bind(keys, std::vector<ArrayView>(values.begin(), values.end()), nullptr, one),
        std::invalid_argument);
  });
}

/// Two models at one store, in steps of their own.
TEST(EngineSlots, ABindingThatIsRefusedLeavesTheOneBefore) {
  run_job(two_by_two(2), [](Engine& engine) {
    Bound bound(engine, kElements);
    const auto step = [&] {
      bound.fill(1);
      for (std::uint32_t slot = 0; slot < 5; ++slot) engine.slots().mark_ready(slot);
      std::vector<std::vector<std::uint32_t>> together;
      for (const SlotSum& sum : engine.slots().sums()) together.push_back(sum.slots);
      EXPECT_TRUE(engine.slots().drain_for(20s));
      return together;
    };
    const auto before = step();
    std::vector<KeyId> keys(5);
    std::iota(keys.begin(), keys.end(), KeyId{0});
    std::vector<ArrayView> values(bound.values.begin(), bound.values.end());
    if (engine.rank() == 1) {
      std::swap(keys[0], keys[2]);
      std::swap(values[0], values[2]);
    }
    EXPECT_THROW(engine.slots().bind(keys, values), std::invalid_argument);
    EXPECT_EQ(step(), before);
    EXPECT_EQ(bound.values[0], std::vector<float>(kElements[0], 2));
  });
}

TEST(EngineSlots, SetsHaveStepsAndScalesOfTheirOwn) {
  run_job(two_by_two(2), [](Engine& engine) {
    const std::size_t shapes[2][3] = {{100, 150, 300}, {70, 50, 400}};
    std::vector<std::vector<float>> values[2];
    for (SlotSet set : {0U, 1U}) {
      std::vector<KeySpec> specs;
      for (std::uint64_t elements : shapes[set]) {
        specs.push_back({"set " + std::to_string(set) + " of " + std::to_string(elements), {elements}});
        values[set].emplace_back(elements, static_cast<float>(set + 1));
      }
      const auto keys = engine.declare(specs);
      engine.slots().bind(keys, std::vector<ArrayView>(values[set].begin(), values[set].end()), nullptr, {},
                          set);
      engine.slots().set_scale(set == 0 ? 0.5F : 10.0F, set);
    }
    for (std::uint32_t slot : {2U, 1U}) engine.slots().mark_ready(slot);
    for (std::uint32_t slot : {2U, 1U, 0U})
      engine.slots().mark_ready(slot, nullptr, 1);  // in the middle of the other's
    EXPECT_THAT(engine.slots().unmarked(), ElementsAre(0));
    EXPECT_TRUE(engine.slots().unmarked(1).empty());
    EXPECT_TRUE(engine.slots().drain_for(20s, 1));
    EXPECT_EQ(values[1][0], std::vector<float>(70, 40.0F));
    EXPECT_EQ(values[0][0], std::vector<float>(100, 1.0F)) << "not sent yet";
    engine.slots().mark_ready(0);
    EXPECT_TRUE(engine.slots().drain_for(20s));
    EXPECT_EQ(values[0][0], std::vector<float>(100, 1.0F));
    EXPECT_EQ(values[1][2], std::vector<float>(400, 40.0F));
    EXPECT_THROW(engine.slots().mark_ready(0, nullptr, 2), std::invalid_argument) << "no such set";
  });
}

TEST(EngineSlots, ANanIsToldToItsOwnSumAlone) {
  run_job(two_by_two(2), [](Engine& engine) {
    engine.compression().set(compress::parse_spec("fp16"), "fp16");
    Bound bound(engine, kElements);
    if (engine.rank() == 1) bound.values[4][7] = std::numeric_limits<float>::quiet_NaN();
    for (std::uint32_t slot = 5; slot-- > 0;) engine.slots().mark_ready(slot);
    const auto sums = engine.slots().sums();
    EXPECT_TRUE(engine.slots().drain_for(20s));
    for (const SlotSum& sum : sums)
      EXPECT_EQ(sum.done.nonfinite(), sum.slots == std::vector<std::uint32_t>{4});
  });
}

}  // namespace
}  // namespace gradwire::kvstore
