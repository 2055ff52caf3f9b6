#include "kvstore/client/round_spans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kvstore/client/tensor_rounds.h"

namespace gradwire::kvstore {
namespace {

using testing::IsEmpty;
using testing::SizeIs;
using Verb = Operation::Verb;

class Spans : public testing::Test {
 protected:
  Tensor& start(Verb verb) {
    Operation operation;
    operation.verb = verb;
    spans_.submitted(0, operation);
    begin(tensor_, std::move(operation), tensors_, pending_);
    spans_.started(tensor_);
    return tensor_;
  }

  std::shared_ptr<Trace> trace_ = std::make_shared<Trace>();
  const RoundSpans spans_{Tracer(trace_, Tier::kHost)};
  PendingRequests pending_{transport::Role::kServer, {}};
  TensorTable tensors_{0};
  Tensor& tensor_ = tensors_.add({"w", {20}}, three_parts());
};

TEST_F(Spans, SayForHowLongEachPartOfAPushWasReady) {
  trace_->start();
  start(Verb::kPushPull);
  const auto spans = trace_->take_spans();
  ASSERT_THAT(spans, SizeIs(3));
  EXPECT_EQ(spans[0].stage, Stage::kReady);
  EXPECT_EQ(spans[0].tier, Tier::kHost);
  EXPECT_EQ(spans[0].bytes, 8 * sizeof(float));
  EXPECT_EQ(spans[2].peer, 1);
}

TEST_F(Spans, NoteWhatHappensToAPartOfTheRoundInFlight) {
  trace_->start();
  const Tensor& tensor = start(Verb::kPushPull);
  trace_->take_spans();
  spans_.note(Stage::kEncode, tensor, 2, RoundSpans::Clock::now(), 7);
  const auto spans = trace_->take_spans();
  ASSERT_THAT(spans, SizeIs(1));
  EXPECT_EQ(spans[0].offset, 16);
  EXPECT_EQ(spans[0].bytes, 7);
  EXPECT_EQ(spans[0].step, 0);
}

TEST_F(Spans, OfWhatIsNoPushAreNone) {
  trace_->start();
  spans_.note(Stage::kEncode, start(Verb::kPull), 0, RoundSpans::Clock::now(), 7);
  EXPECT_THAT(trace_->take_spans(), IsEmpty());
}

TEST_F(Spans, AreNotedWhileTheTraceIsOnAlone) {
  const Tensor& tensor = start(Verb::kPushPull);
  EXPECT_EQ(tensor.current->submitted, TraceClock::time_point());
  trace_->start();
  spans_.started(tensor);  // it was submitted before
  EXPECT_THAT(trace_->take_spans(), IsEmpty());
}

}  // namespace
}  // namespace gradwire::kvstore
