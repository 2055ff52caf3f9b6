#include "kvstore/client/weight_receiver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/kvstore/client/tensor_rounds.h"

namespace gradwire::kvstore {
namespace {

using testing::Each;
using transport::Frame;
using transport::Kind;
using Values = std::vector<float>;
using Verb = Operation::Verb;

class ReceivedWeights : public testing::Test {
 protected:
  void start(Verb verb, const std::string& replies) {
    Operation operation;
    operation.verb = verb;
    if (tensor_.current) end(tensor_, pending_);
    begin(tensor_, std::move(operation), tensors_, pending_);
    part().request = verb == Verb::kPull ? Kind::kPull : Kind::kPush;
    tensor_.weight_replies = std::make_shared<const WeightReplies>(replies);
  }
  TensorPart& part() { return tensor_.parts[0]; }
  /// An answer as it comes, and as what it is handed on.
  Values take(Content content, transport::Buffer payload, const WeightReceiver& receiver) {
    Frame frame{{}, std::move(payload)};
    frame.header.kind = Kind::kValue;
    frame.header.count = 256;
    frame.header.content = static_cast<std::uint8_t>(content);
    if (content == Content::kWeightDelta || content == Content::kWeightRounded)
      frame.header.codec = static_cast<std::uint8_t>(tensor_.weight_replies->codec().wire_id());
    receiver.expect(tensor_, part(), frame.header);
    receiver.take(tensor_, 0, frame);
    Values values(frame.payload.size_bytes() / sizeof(float));
    std::memcpy(values.data(), frame.payload.bytes().data(), frame.payload.size_bytes());
    return values;
  }
  transport::Buffer floats(float value) {
    const Values values(256, value);
    return transport::Buffer::borrow(std::as_bytes(std::span(values))).copy();
  }
  transport::Buffer delta(float from, float to) {
    Values told(256, from);
    return std::move(*encode_delta(tensor_.weight_replies->codec(), Values(256, to), {}, told, buffers_));
  }

  transport::BufferPool buffers_;
  PendingRequests pending_{transport::Role::kServer, {}};
  TensorTable tensors_{0};
  Tensor& tensor_ = tensors_.add({"w", {256}}, std::vector<Part>{{0, 0, 256}});
  const WeightReceiver in_rounds_{false, buffers_}, async_workers_{true, buffers_};
};

TEST_F(ReceivedWeights, AreAskedForAsWhatChangesTheOneThatIsHeld) {
  start(Verb::kPushPull, "delta:int8");
  EXPECT_EQ(in_rounds_.content_of_request(tensor_, part()), Content::kSum);
  part().holds_weight = true;
  EXPECT_EQ(in_rounds_.content_of_request(tensor_, part()), Content::kWeightDelta);
  start(Verb::kPull, "delta:int8");
  EXPECT_EQ(in_rounds_.content_of_request(tensor_, part()), Content::kSum)
      << "a pull shows, and tells nothing";
  tensor_.asks_for_servers_own = true;
  EXPECT_EQ(in_rounds_.content_of_request(tensor_, part()), Content::kWeight);
}

TEST_F(ReceivedWeights, AppliedAtOnceAreToldInPullsToo) {
  start(Verb::kPull, "delta:int8");
  part().holds_weight = true;
  EXPECT_EQ(async_workers_.content_of_request(tensor_, part()), Content::kWeightDelta);
  start(Verb::kPush, "fp32");
  part().holds_weight = false;
  EXPECT_EQ(async_workers_.content_of_request(tensor_, part()), Content::kSum) << "a push wants no weight";
  start(Verb::kPushPull, "fp32");
  EXPECT_EQ(async_workers_.content_of_request(tensor_, part()), Content::kWeight);
}

TEST_F(ReceivedWeights, AreHeldWholeAndThenChanged) {
  start(Verb::kPushPull, "delta:int8");
  EXPECT_THAT(take(Content::kWeight, floats(1), in_rounds_), Each(1.0F));
  EXPECT_TRUE(part().holds_weight);
  EXPECT_THAT(take(Content::kWeightDelta, delta(1, 3), in_rounds_), Each(testing::FloatNear(3, 0.02F)));
  EXPECT_THAT(tensor_.held, Each(testing::FloatNear(3, 0.02F)));
}

TEST_F(ReceivedWeights, ThatAreRoundedComeAsFloats) {
  start(Verb::kPushPull, "fp16");
  auto rounded = round_weight(tensor_.weight_replies->codec(), Values(256, 1.5F), buffers_);
  EXPECT_THAT(take(Content::kWeightRounded, std::move(*rounded), in_rounds_), Each(1.5F));
  EXPECT_TRUE(tensor_.held.empty());
}

TEST_F(ReceivedWeights, ThatWereNotAskedForAreRefused) {
  start(Verb::kPushPull, "delta:int8");
  EXPECT_THROW(take(Content::kWeightDelta, delta(0, 1), in_rounds_), compress::DecodeError)
      << "none is held that it could change";
  EXPECT_THROW(take(Content::kWeightRounded, floats(1), in_rounds_), compress::DecodeError);
  EXPECT_THROW(take(static_cast<Content>(9), floats(1), in_rounds_), compress::DecodeError);
}

TEST_F(ReceivedWeights, SumsAreNone) {
  start(Verb::kPushPull, "delta:int8");
  EXPECT_THAT(take(Content::kSum, floats(2), in_rounds_), Each(2.0F));
  EXPECT_FALSE(part().holds_weight);
  EXPECT_TRUE(tensor_.held.empty());
}

}  // namespace
}  // namespace gradwire::kvstore
