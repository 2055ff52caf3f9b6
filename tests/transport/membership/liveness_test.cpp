// Liveness: who is declared dead, when, and with which words. The clock is the test's.
#include "transport/membership/liveness.h"

#include <gtest/gtest.h>

#include "transport/mpi/mpi.h"
#include "transport/zmq/zmq_messenger.h"

namespace gradwire::transport {
namespace {

using namespace std::chrono_literals;

constexpr auto kTimeout = 5s;

struct LivenessTest : ::testing::Test {
  Liveness liveness{kTimeout};
  Liveness::Time start{1000s};

  // Checks as often as a running thread would.
  std::optional<Liveness::Lost> run_until(Liveness::Time end) {
    for (; now < end; now += 100ms) {
      if (auto lost = liveness.check(now)) return lost;
    }
    return std::nullopt;
  }
  Liveness::Time now = start;
};

TEST_F(LivenessTest, BeatsAreATenthOfTheTimeoutAndAtMostHalfASecond) {
  EXPECT_EQ(Liveness(60s).beat(), 500ms);
  EXPECT_EQ(Liveness(5s).beat(), 500ms);
  EXPECT_EQ(Liveness(1s).beat(), 100ms);
}

TEST_F(LivenessTest, ASilentNodeIsLostAfterTheTimeoutAndNotBefore) {
  liveness.heard("worker 1", start);
  EXPECT_FALSE(run_until(start + 4900ms));
  const auto lost = run_until(start + 6s);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->id, "worker 1");
  EXPECT_EQ(lost->why, "sent no heartbeat for 5.0 s (GRADWIRE_LIVENESS_TIMEOUT is 5.0 s)");
}

TEST_F(LivenessTest, UnlessSetAClosedConnectionHasTwoSecondsAndASilentHostTwenty) {
  for (const std::chrono::milliseconds by_default :
       {ZmqOptions{}.liveness_timeout, MpiOptions{}.liveness_timeout}) {
    Liveness unset(by_default);
    unset.heard("worker 0", start);
    unset.heard("worker 1", start);
    unset.disconnected("worker 1", start);
    std::optional<Liveness::Lost> lost;
    for (now = start; !lost; now += 100ms) lost = unset.check(now);
    EXPECT_EQ(lost->id, "worker 1");
    EXPECT_LE(now - start, 2s);
    unset.forget("worker 1");
    for (; now < start + 20s; now += 100ms) ASSERT_FALSE(unset.check(now)) << (now - start) / 1ms;
    lost = unset.check(now);
    ASSERT_TRUE(lost);
    EXPECT_EQ(lost->why, "sent no heartbeat for 20.0 s (GRADWIRE_LIVENESS_TIMEOUT is 20.0 s)");
  }
}

TEST_F(LivenessTest, ABeatingNodeIsNeverLost) {
  for (int i = 0; i < 100; ++i) {
    liveness.heard("worker 1", now);
    ASSERT_FALSE(run_until(now + 4s));
  }
}

TEST_F(LivenessTest, AForgottenNodeIsNotLost) {
  liveness.heard("worker 1", start);
  liveness.forget("worker 1");
  EXPECT_FALSE(run_until(start + 60s));
}

TEST_F(LivenessTest, AClosedConnectionShortensTheWait) {
  liveness.heard("worker 0", start);
  liveness.heard("worker 1", start);
  liveness.disconnected("worker 1", start);
  EXPECT_FALSE(run_until(start + 1400ms));
  const auto lost = run_until(start + 2s);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->id, "worker 1");
  EXPECT_EQ(lost->why, "closed its connection and did not come back within 1.5 s");
}

TEST_F(LivenessTest, ANodeThatComesBackIsNotLost) {
  liveness.heard("worker 1", start);
  liveness.disconnected("worker 1", start);
  EXPECT_FALSE(run_until(start + 1s));
  liveness.heard("worker 1", now);
  EXPECT_FALSE(run_until(now + 4900ms));
}

TEST_F(LivenessTest, DisconnectionOfAnUnwatchedNodeIsNothing) {
  liveness.disconnected("worker 1", start);
  EXPECT_FALSE(run_until(start + 60s));
}

TEST_F(LivenessTest, AWatcherThatSleptBlamesNobodyForThatTime) {
  liveness.heard("worker 1", start);
  EXPECT_FALSE(run_until(start + 1s));
  now += 100s;  // the watching process was stopped
  EXPECT_FALSE(run_until(now + 3s));
  EXPECT_TRUE(run_until(now + 3s)) << "and from then on counts as before";
}

}  // namespace
}  // namespace gradwire::transport
