#include "kvstore/aggregate/attendance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Attendance, WhoHasComeIsAwayUntilAllHave) {
  Attendance attendance(3, "join");
  EXPECT_EQ(attendance.come(2), 0U);
  EXPECT_EQ(attendance.come(0), 1U);
  EXPECT_EQ(attendance.away(), 2U);
  EXPECT_TRUE(attendance.is_away(2));
  EXPECT_FALSE(attendance.is_away(1));
  EXPECT_EQ(attendance.come(1), 2U);
  EXPECT_EQ(attendance.away(), 0U);
  for (const std::uint32_t worker : {0U, 1U, 2U}) EXPECT_FALSE(attendance.is_away(worker));
}

TEST(Attendance, WhoIsBackMayComeAgain) {
  Attendance attendance(2, "join");
  EXPECT_EQ(attendance.come(1), 0U);
  EXPECT_EQ(attendance.come(0), 1U);
  EXPECT_EQ(attendance.come(0), 0U) << "the next time";
  EXPECT_TRUE(attendance.is_away(0));
  EXPECT_FALSE(attendance.is_away(1));
}

TEST(Attendance, WhoGoesBackIsAwaitedAgain) {
  Attendance attendance(2, "join");
  attendance.come(1);
  attendance.go_back(1);
  attendance.go_back(1);  // no-op
  EXPECT_EQ(attendance.away(), 0U);
  EXPECT_EQ(attendance.come(0), 0U);
  EXPECT_TRUE(attendance.is_away(0));
  EXPECT_EQ(attendance.come(1), 1U);
  EXPECT_FALSE(attendance.is_away(0));
}

TEST(Attendance, NobodyComesTwiceAtOnce) {
  Attendance attendance(2, "join");
  attendance.come(1);
  EXPECT_THAT([&] { attendance.come(1); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("join: worker 1 has come already")));
  EXPECT_EQ(attendance.away(), 1U);
}

}  // namespace
}  // namespace gradwire::kvstore
