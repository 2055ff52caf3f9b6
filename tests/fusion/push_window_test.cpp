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

TEST(PushWindow, WhoeverGetsNoAnswersIsNotHeldUp) {
  PushWindow window(1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(window.closed_until(0, at(i)));
    window.sent(0, kPiece, at(i));
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
  PushWindow window = practised();
  for (int i = 0; i < 4; ++i) window.sent(0, kPiece, at(10));
  window.answered(0, kPiece, at(40));
  EXPECT_TRUE(window.closed_until(0, at(40)));
  window.answered(0, 2 * kPiece, at(41));
  EXPECT_FALSE(window.closed_until(0, at(41))) << "one push is left, less than the least";
}

TEST(PushWindow, ItOpensWhenAnswersCeaseToCome) {
  PushWindow window = practised();
  for (int i = 0; i < 4; ++i) window.sent(0, kPiece, at(10));
  window.answered(0, kPiece, at(40));
  EXPECT_TRUE(window.closed_until(0, at(59)));
  EXPECT_FALSE(window.closed_until(0, at(60)));
}

TEST(PushWindow, AFarServerGetsMoreOnItsWay) {
  PushWindow window(1);
  window.sent(0, kPiece, at(0));
  window.answered(0, kPiece, at(100));
  for (int i = 0; i < 100; ++i) window.sent(0, kPiece, at(100 + i));
  window.answered(0, kPiece, at(205));
  EXPECT_FALSE(window.closed_until(0, at(205)));
}

TEST(PushWindow, OneLargePushTravelsWhileAnotherIsSummed) {
  PushWindow window = practised();
  window.sent(0, 8 * kPiece, at(10));
  window.answered(0, kPiece, at(40));
  EXPECT_FALSE(window.closed_until(0, at(40)));
  window.sent(0, 8 * kPiece, at(41));
  EXPECT_TRUE(window.closed_until(0, at(41)));
}

TEST(PushWindow, MoreAnswersThanPushesAreNoMatter) {
  PushWindow window = practised();
  window.answered(0, 7 * kPiece, at(6));
  window.sent(0, 3 * kPiece, at(7));
  EXPECT_FALSE(window.closed_until(0, at(7)));
}

TEST(PushWindow, ForgetsWhatWasLost) {
  PushWindow window = practised();
  for (int i = 0; i < 4; ++i) window.sent(0, kPiece, at(10));
  window.answered(0, kPiece, at(40));
  EXPECT_TRUE(window.closed_until(0, at(40)));
  window.forget();
  EXPECT_FALSE(window.closed_until(0, at(40)));
}

}  // namespace
}  // namespace gradwire::fusion
