#include "fusion/step_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace gradwire::fusion {
namespace {

using ::testing::ElementsAre;

TEST(StepPlan, SmallNeighboursShareAKeyAndOneServer) {
  const std::vector<std::uint64_t> elements{10, 10, 5000, 10};
  const StepPlan plan = plan_step(elements, 2, 0,
                                  {.partition_elements = 500,
                                   .unit_elements = 100,
                                   .least_pieces = 4,
                                   .shortest_piece_elements = 100,
                                   .shard_bound_elements = 1000,
                                   .fusion_bytes = 80});
  ASSERT_EQ(plan.keys.size(), 3U);
  EXPECT_THAT(plan.keys[0].layers, ElementsAre(3U));
  EXPECT_THAT(plan.keys[1].layers, ElementsAre(2U));
  EXPECT_THAT(plan.keys[2].layers, ElementsAre(1U, 0U));
  EXPECT_EQ(plan.keys[2].priority, 0);
  EXPECT_EQ(plan.keys[1].priority, -2);
  EXPECT_EQ(plan.parts.back().elements, 20U);
  EXPECT_EQ(plan.parts.size(), 1U + 10U + 1U);
}

TEST(StepPlan, ARunIsCutIntoAtLeastSoManyPieces) {
  const std::vector<std::uint64_t> elements{1600};
  const StepPlan plan = plan_step(elements, 2, 1,
                                  {.partition_elements = 700,
                                   .unit_elements = 100,
                                   .least_pieces = 4,
                                   .shortest_piece_elements = 100,
                                   .shard_bound_elements = 1000,
                                   .fusion_bytes = 0});
  ASSERT_EQ(plan.parts.size(), 8U);
  for (const PlannedPart& part : plan.parts) EXPECT_EQ(part.elements, 200U);
  EXPECT_EQ(plan.parts[plan.keys[0].turns[0]].server, 1U);
  EXPECT_EQ(plan.parts[plan.keys[0].turns[1]].server, 0U);
}

TEST(StepPlan, ButIntoNoneThatIsTooShort) {
  const std::vector<std::uint64_t> elements{1600};
  const StepPlan plan = plan_step(elements, 2, 0,
                                  {.partition_elements = 700,
                                   .unit_elements = 100,
                                   .least_pieces = 4,
                                   .shortest_piece_elements = 400,
                                   .shard_bound_elements = 1000,
                                   .fusion_bytes = 0});
  ASSERT_EQ(plan.parts.size(), 4U);
  for (const PlannedPart& part : plan.parts) EXPECT_EQ(part.elements, 400U);
}

TEST(StepPlan, CoversEveryElementOnce) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<std::uint64_t> elements(1 + random() % 12);
    for (std::uint64_t& count : elements) count = 1 + random() % 400'000;
    const std::uint32_t servers = 1 + static_cast<std::uint32_t>(random() % 9);
    const StepPlan plan = plan_step(elements, servers, 0, {});
    std::vector<std::uint64_t> of_key(plan.keys.size(), 0);
    std::vector<std::size_t> turns;
    for (const PlannedPart& part : plan.parts) {
      of_key[part.key] += part.elements;
      EXPECT_LT(part.server, servers);
    }
    for (std::size_t k = 0; k < plan.keys.size(); ++k) {
      std::uint64_t expected = 0;
      for (const std::uint32_t layer : plan.keys[k].layers) expected += elements[layer];
      EXPECT_EQ(of_key[k], expected);
      turns.insert(turns.end(), plan.keys[k].turns.begin(), plan.keys[k].turns.end());
    }
    std::ranges::sort(turns);
    std::vector<std::size_t> all(plan.parts.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    EXPECT_EQ(turns, all);
  }
}

}  // namespace
}  // namespace gradwire::fusion
