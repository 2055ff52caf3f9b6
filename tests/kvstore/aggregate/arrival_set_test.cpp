#include "kvstore/aggregate/arrival_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(ArrivalSet, WhoHasComeIsAwayUntilAllHave) {
  ArrivalSet joined(3, "join");
  EXPECT_EQ(joined.come(2), 0U);
  EXPECT_EQ(joined.come(0), 1U);
  EXPECT_EQ(joined.away(), 2U);
  EXPECT_TRUE(joined.is_away(2));
  EXPECT_FALSE(joined.is_away(1));
  EXPECT_EQ(joined.come(1), 2U);
  EXPECT_EQ(joined.away(), 0U);
  for (const std::uint32_t worker : {0U, 1U, 2U}) EXPECT_FALSE(joined.is_away(worker));
}

TEST(ArrivalSet, WhoIsBackMayComeAgain) {
  ArrivalSet joined(2, "join");
  EXPECT_EQ(joined.come(1), 0U);
  EXPECT_EQ(joined.come(0), 1U);
  EXPECT_EQ(joined.come(0), 0U) << "the next time";
  EXPECT_TRUE(joined.is_away(0));
  EXPECT_FALSE(joined.is_away(1));
}

TEST(ArrivalSet, WhoGoesBackIsAwaitedAgain) {
  ArrivalSet joined(2, "join");
  joined.come(1);
  joined.go_back(1);
  joined.go_back(1);  // no-op
  EXPECT_EQ(joined.away(), 0U);
  EXPECT_EQ(joined.come(0), 0U);
  EXPECT_TRUE(joined.is_away(0));
  EXPECT_EQ(joined.come(1), 1U);
  EXPECT_FALSE(joined.is_away(0));
}

TEST(ArrivalSet, NobodyComesTwiceAtOnce) {
  ArrivalSet joined(2, "join");
  joined.come(1);
  EXPECT_THAT([&] { joined.come(1); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("join: worker 1 has come already")));
  EXPECT_EQ(joined.away(), 1U);
}

}  // namespace
}  // namespace gradwire::kvstore
