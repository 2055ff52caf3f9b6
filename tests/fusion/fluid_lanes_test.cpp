#include "fusion/fluid_lanes.h"

#include <gmock/gmock.h>

namespace gradwire::fusion {
namespace {

TEST(FluidLanes, ALaneCarriesOneTransferAfterTheOther) {
  FluidLanes lanes(2);
  EXPECT_EQ(lanes.next_end(), std::nullopt);
  lanes.set_rate(0, 10);
  lanes.add(0, 1, {7, 100});
  lanes.add(0, 1, {8, 50});
  EXPECT_EQ(lanes.busy(), 1U);
  EXPECT_DOUBLE_EQ(lanes.next_end().value(), 10);
  EXPECT_EQ(lanes.end(10).transfer.id, 7U);
  EXPECT_DOUBLE_EQ(lanes.next_end().value(), 15);
  EXPECT_EQ(lanes.end(15).lane, 1U);
  EXPECT_EQ(lanes.busy(), 0U);
}

TEST(FluidLanes, ALowerRateHoldsFromWhenItIsSet) {
  FluidLanes lanes(2);
  lanes.set_rate(0, 10);
  lanes.add(0, 0, {1, 100});
  lanes.add(4, 1, {2, 100});
  lanes.set_rate(4, 5);  // 40 bytes of the first are through
  EXPECT_DOUBLE_EQ(lanes.next_end().value(), 16);
  EXPECT_EQ(lanes.end(16).transfer.id, 1U);
  lanes.set_rate(16, 10);  // 40 bytes of the second are left
  EXPECT_DOUBLE_EQ(lanes.next_end().value(), 20);
}

TEST(FluidLanes, EqualEndsKeepTheOrderInWhichTheyBegan) {
  FluidLanes lanes(3);
  lanes.set_rate(0, 1);
  for (const std::uint32_t lane : {2U, 0U, 1U}) lanes.add(0, lane, {lane, 5});
  EXPECT_EQ(lanes.end(5).lane, 2U);
  EXPECT_EQ(lanes.end(5).lane, 0U);
  EXPECT_EQ(lanes.end(5).lane, 1U);
}

}  // namespace
}  // namespace gradwire::fusion
