#include "kvstore/attendance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Attendance, WhoHasJoinedIsAwayUntilAllHave) {
  Attendance attendance(3);
  EXPECT_EQ(attendance.join(2), 0U);
  EXPECT_EQ(attendance.join(0), 1U);
  EXPECT_EQ(attendance.away(), 2U);
  EXPECT_TRUE(attendance.is_away(2));
  EXPECT_FALSE(attendance.is_away(1));
  EXPECT_EQ(attendance.join(1), 2U);
  EXPECT_EQ(attendance.away(), 0U);
  for (const std::uint32_t worker : {0U, 1U, 2U}) EXPECT_FALSE(attendance.is_away(worker));
}

TEST(Attendance, WhoIsBackMayJoinAgain) {
  Attendance attendance(2);
  EXPECT_EQ(attendance.join(1), 0U);
  EXPECT_EQ(attendance.join(0), 1U);
  EXPECT_EQ(attendance.join(0), 0U) << "the next time";
  EXPECT_TRUE(attendance.is_away(0));
  EXPECT_FALSE(attendance.is_away(1));
}

TEST(Attendance, NobodyJoinsTwiceAtOnce) {
  Attendance attendance(2);
  attendance.join(1);
  EXPECT_THAT([&] { attendance.join(1); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("worker 1 has joined already")));
  EXPECT_EQ(attendance.away(), 1U);
}

}  // namespace
}  // namespace gradwire::kvstore
