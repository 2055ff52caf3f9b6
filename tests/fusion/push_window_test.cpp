#include "fusion/push_window.h"

#include <gtest/gtest.h>

namespace gradwire::fusion {
namespace {

using std::chrono::milliseconds;
using Time = PushWindow::Time;

constexpr std::uint64_t kPiece = 1 << 20;
constexpr Time kBegin{std::chrono::hours(1)};

Time at(int ms) { return kBegin + milliseconds(ms); }

/// A window whose fastest answer has taken 5 ms, at 5 ms: so its patience is 20 ms.
PushWindow practised() {
  PushWindow window(2);
  window.sent(0, kPiece, at(0));
  window.answered(0, kPiece, at(5));
  return window;
}

/// The same, which is six pieces ahead and has had an answer at 40 ms.
PushWindow ahead() {
  PushWindow window = practised();
  for (int i = 0; i < 7; ++i) window.sent(0, kPiece, at(10));
  window.answered(0, kPiece, at(40));
  return window;
}

TEST(PushWindow, WhoeverGetsNoAnswersIsNotHeldUp) {
  PushWindow window = practised();
  for (int i = 30; i < 100; ++i) {
    window.sent(0, kPiece, at(i));
    EXPECT_FALSE(window.closed_until(0, at(i)));
  }
}

TEST(PushWindow, ItClosesWhileAnswersComeLate) {
  PushWindow window = practised();
  for (int i = 0; i < 10; ++i) window.sent(0, kPiece, at(10 + i));
  window.answered(0, kPiece, at(31));  // the first's; the second has been on its way since 11
  EXPECT_FALSE(window.closed_until(0, at(31))) << "20 ms are no lead";
  window.answered(0, kPiece, at(33));  // the second's
  EXPECT_EQ(window.closed_until(0, at(33)), at(33 + 20));
  EXPECT_FALSE(window.closed_until(1, at(33))) << "another server's";
}

TEST(PushWindow, ItOpensWhenTheOthersHaveCaughtUp) {
  PushWindow window = ahead();
  EXPECT_TRUE(window.closed_until(0, at(40)));
  window.answered(0, 3 * kPiece, at(41));
  EXPECT_FALSE(window.closed_until(0, at(41))) << "three pieces are less than the least";
  for (int i = 0; i < 9; ++i) window.sent(0, kPiece, at(42));
  window.answered(0, 3 * kPiece, at(50));
  EXPECT_FALSE(window.closed_until(0, at(50))) << "what is left is young";
  window.answered(0, kPiece, at(63));
  EXPECT_TRUE(window.closed_until(0, at(63))) << "a pause that answers have ended has changed nothing";
}

TEST(PushWindow, NoPauseIsLongerThanThePatienceAndOneThatTimeHasEndedIsNotRepeatedSoon) {
  PushWindow window = ahead();
  EXPECT_TRUE(window.closed_until(0, at(40)));
  window.answered(0, kPiece, at(50));  // of five left: answers go on, but slowly
  EXPECT_EQ(window.closed_until(0, at(50)), at(60));
  EXPECT_FALSE(window.closed_until(0, at(60)));
  for (int i = 0; i < 4; ++i) window.sent(0, kPiece, at(61));
  EXPECT_FALSE(window.closed_until(0, at(62))) << "nine pieces";
  window.sent(0, kPiece, at(62));
  window.answered(0, 1, at(63));
  window.sent(0, kPiece, at(63));
  EXPECT_TRUE(window.closed_until(0, at(63))) << "more than twice five pieces";
}

TEST(PushWindow, TwoThatPushInOppositeOrdersPauseOnce) {
  PushWindow window = ahead();
  EXPECT_TRUE(window.closed_until(0, at(40)));
  EXPECT_FALSE(window.closed_until(0, at(60))) << "the other has paused too";
  for (int i = 60; i < 100; ++i) {  // each push is answered at once, and the oldest are the other's last
    window.sent(0, kPiece, at(i));
    window.answered(0, kPiece, at(i));
    EXPECT_FALSE(window.closed_until(0, at(i)));
  }
}

TEST(PushWindow, AFarServerGetsMoreOnItsWay) {
  PushWindow window(1);
  window.sent(0, kPiece, at(0));
  window.answered(0, kPiece, at(100));
  for (int i = 0; i < 100; ++i) window.sent(0, kPiece, at(100 + i));
  window.answered(0, kPiece, at(205));
  EXPECT_FALSE(window.closed_until(0, at(205)));
}

TEST(PushWindow, TheAnswerToASmallPushSaysNothingOfLargeOnes) {
  PushWindow window(1);
  window.sent(0, 1000, at(0));
  window.answered(0, 1000, at(0));
  for (int i = 0; i < 9; ++i) window.sent(0, kPiece, at(10));
  window.answered(0, 1, at(100));
  EXPECT_FALSE(window.closed_until(0, at(100))) << "nobody knows how long an answer takes";
}

TEST(PushWindow, WhereAllPushesAreSmallTheirAnswersTell) {
  PushWindow window(1);
  window.sent(0, 1000, at(0));
  window.answered(0, 1000, at(5));
  for (int i = 0; i < 5000; ++i) window.sent(0, 1000, at(10));
  window.answered(0, 1000, at(40));
  EXPECT_TRUE(window.closed_until(0, at(40)));
}

TEST(PushWindow, OneLargePushTravelsWhileAnotherIsSummed) {
  PushWindow window(1);
  window.sent(0, 8 * kPiece, at(0));
  window.answered(0, 8 * kPiece, at(5));
  window.sent(0, 8 * kPiece, at(10));
  window.answered(0, kPiece, at(40));
  EXPECT_FALSE(window.closed_until(0, at(40)));
  window.sent(0, 8 * kPiece, at(41));
  EXPECT_TRUE(window.closed_until(0, at(41)));
}

TEST(PushWindow, MoreAnswersThanPushesAreNoMatter) {
  PushWindow window = practised();
  window.answered(0, 7 * kPiece, at(6));
  EXPECT_EQ(window.unanswered_bytes(0), 0u);
  window.sent(0, kPiece, at(7));
  EXPECT_EQ(window.unanswered_bytes(0), kPiece);
}

TEST(PushWindow, APushThatIsSentAgainCountsOnce) {
  PushWindow window = practised();
  window.sent(0, kPiece, at(10));
  window.lost(0, kPiece);
  window.sent(0, kPiece, at(50));
  EXPECT_EQ(window.unanswered_bytes(0), kPiece);
  EXPECT_FALSE(window.closed_until(0, at(51)));
}

TEST(PushWindow, ForgetsAServerAndHowFastItWas) {
  PushWindow window = ahead();
  window.forget(0);
  EXPECT_EQ(window.unanswered_bytes(0), 0u);
  for (int i = 0; i < 9; ++i) window.sent(0, kPiece, at(50));
  window.answered(0, 1, at(100));
  EXPECT_FALSE(window.closed_until(0, at(100)));
}

}  // namespace
}  // namespace gradwire::fusion
