#include "kvstore/aggregate/round_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kvstore/wire/answer.h"

namespace gradwire::kvstore {
namespace {

using transport::FrameHeader;

FrameHeader push_of(std::uint64_t step) {
  FrameHeader header;
  header.key = 4;
  header.step = step;
  header.codec = 3;
  return header;
}

std::string refusal_in(const std::function<void()>& call, Refusal how) {
  try {
    call();
  } catch (const Refused& refused) {
    EXPECT_EQ(refused.how, how);
    return refused.text;
  }
  return {};
}

TEST(RoundGate, KeepsTheFastFromPilingUpRounds) {
  EXPECT_FALSE(RoundGate::is_too_far_ahead(5 + 63, 5));
  EXPECT_TRUE(RoundGate::is_too_far_ahead(5 + 64, 5));
}

TEST(RoundGate, APushTravelsAsTheFirstOfItsRound) {
  const RoundGate gate("table", Refusal::kRows);
  FrameHeader first = push_of(2);
  first.sender = {transport::Role::kWorker, 1};
  gate.require_alike(0, push_of(2), first);
  const auto refused_with = [&](auto change) {
    FrameHeader push = push_of(2);
    change(push);
    return refusal_in([&] { gate.require_alike(0, push, first); }, Refusal::kRows);
  };
  EXPECT_EQ(refused_with([](FrameHeader& push) { push.codec = 4; }),
            "push of table 4 step 2: worker 0 sent codec 4 (0x0,0x0,0x0,0x0), reply 0; worker 1 sent codec 3 "
            "(0x0,0x0,0x0,0x0), reply 0; give every rank the same compression");
  EXPECT_NE(refused_with([](FrameHeader& push) { push.codec_parameters[2] = 1; }), "");
  EXPECT_NE(refused_with([](FrameHeader& push) { push.reply = 1; }), "");
  EXPECT_NE(refused_with([](FrameHeader& push) { push.dtype = 1; }), "");
  EXPECT_NE(refused_with([](FrameHeader& push) { push.flags = transport::kFlagSegments; }), "");
  EXPECT_EQ(refused_with([](FrameHeader& push) { push.flags = transport::kFlagNonfinite; }), "");
}

TEST(RoundGate, APushAppliedAtOnceIsItsWorkersNext) {
  const RoundGate gate("key", Refusal::kFinal);
  PushClocks clocks(2, AsyncPolicy{});
  gate.require_next(0, push_of(7), clocks);  // who has not pushed may begin late
  clocks.count(0, 7);
  gate.require_next(0, push_of(8), clocks);
  gate.require_next(0, push_of(3), clocks);
  EXPECT_EQ(refusal_in([&] { gate.require_next(0, push_of(9), clocks); }, Refusal::kFinal),
            "push of key 4 is for step 9 of worker 0, expected step 8");
}

TEST(RoundGate, APushAppliedAtOnceNeedsAnOptimizer) {
  const RoundGate gate("key", Refusal::kFinal);
  gate.require_optimizer(push_of(0), true);
  EXPECT_EQ(refusal_in([&] { gate.require_optimizer(push_of(0), false); }, Refusal::kFinal),
            "push of key 4: pushes are applied at once, and there is no optimizer that could; set one first");
}

TEST(RoundGate, SaysWhoseContributionWillNotCome) {
  RoundGate gate("key", Refusal::kFinal);
  gate.forget_worker(2, "");
  gate.forget_worker(3, "ValueError: no");
  EXPECT_TRUE(gate.gone().contains(2));
  EXPECT_EQ(gate.describe(2, 5, 4),
            "worker 2 left the job before step 5 of key 4; every worker must run the same number of steps");
  EXPECT_EQ(gate.describe(3, 5, 4),
            "worker 3 failed before step 5 of key 4: ValueError: no; see its traceback");
}

}  // namespace
}  // namespace gradwire::kvstore
