#include "kvstore/client/answer_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/kvstore/client/tensor_rounds.h"

namespace gradwire::kvstore {
namespace {

using testing::Each;
using testing::ElementsAre;
using transport::Frame;
using transport::Kind;
using Values = std::vector<float>;

class Decoded : public testing::Test {
 protected:
  Tensor& start(Operation operation, const std::string& codec = "none",
                const std::string& dtype = "float32") {
    tensors_.set_compression(compression(codec));
    Tensor& tensor = tensors_.add({"w", {20}, dtype}, three_parts());
    begin(tensor, std::move(operation), tensors_, pending_);
    return tensor;
  }
  template <typename Element>
  static Frame value(const std::vector<Element>& values, Kind kind = Kind::kValue) {
    Frame frame;
    frame.header.kind = kind;
    frame.header.count = values.size();
    frame.header.dtype =
        static_cast<std::uint8_t>(sizeof(Element) == sizeof(float) ? Dtype::kFloat32 : Dtype::kFloat64);
    frame.payload = transport::Buffer::allocate(values.size() * sizeof(Element));
    std::memcpy(frame.payload.bytes().data(), values.data(), values.size() * sizeof(Element));
    return frame;
  }
  Operation into(float scale = 1) {
    Operation operation;
    operation.in = gradient_;
    operation.out = out_;
    operation.scale = scale;
    return operation;
  }

  const Values gradient_ = Values(20);
  Values out_ = Values(20, -1.0F);
  std::vector<double> out64_ = std::vector<double>(20, -1.0);
  PendingRequests pending_{transport::Role::kServer, {}};
  TensorTable tensors_{0};
  const AnswerDecoder decoder_{4};
};

TEST_F(Decoded, ComeToTheirPartTimesTheScale) {
  Tensor& tensor = start(into(0.5F));
  decoder_.decode(tensor, 2, value(Values{2, 4, 6, 8}));
  EXPECT_THAT(Values(out_.begin() + 16, out_.end()), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Values(out_.begin(), out_.begin() + 16), Each(-1.0F));
}

TEST_F(Decoded, ARepliesCodecMustBeThatOfThePush) {
  Tensor& tensor = start(into(), "fp16");
  EXPECT_THROW(decoder_.decode(tensor, 2, value(Values{2, 4, 6, 8}, Kind::kReply)), compress::DecodeError);
}

TEST_F(Decoded, AValueOfAnotherLengthIsNone) {
  Tensor& tensor = start(into());
  EXPECT_THROW(decoder_.decode(tensor, 2, value(Values{2, 4, 6})), compress::DecodeError);
}

TEST_F(Decoded, ValuesForAPushThatAskedForNoneAreRefused) {
  Operation push;
  push.verb = Operation::Verb::kPush;
  push.in = gradient_;
  Tensor& tensor = start(std::move(push));
  EXPECT_THROW(decoder_.decode(tensor, 0, value(Values(8))), compress::DecodeError);
}

TEST_F(Decoded, OnADeviceTheyAreRefusedTooAndABucketsSlotsAreTheirRoom) {
  Operation operation;
  operation.device.emplace();
  EXPECT_THROW(AnswerDecoder::expect_room(operation, {0, 0, 8}), compress::DecodeError);
  operation.scatter.emplace_back(std::span(out_));
  EXPECT_NO_THROW(AnswerDecoder::expect_room(operation, {0, 0, 8}));
}

TEST_F(Decoded, OfFloat64KeepTheirBits) {
  Operation operation;
  operation.in = out64_;
  operation.out = out64_;
  Tensor& tensor = start(std::move(operation), "none", "float64");
  decoder_.decode(tensor, 2, value(std::vector<double>{1e300, 0.1, 0.2, 0.3}));
  EXPECT_EQ(out64_[16], 1e300);
  EXPECT_EQ(out64_[17], 0.1);
  decoder_.decode(tensor, 2, value(Values{0.5F, 1, 2, 4}));  // a first value that a rank gave as float32
  EXPECT_EQ(out64_[16], 0.5);
}

TEST_F(Decoded, AreRoundedOnceForArraysOf16Bits) {
  std::vector<std::uint16_t> bits(20, 0x7fc0);
  Operation operation;
  operation.in = gradient_;
  operation.out = {ElementType::kBfloat16, std::as_writable_bytes(std::span(bits))};
  operation.scale = 0.5;
  Tensor& tensor = start(std::move(operation));
  decoder_.decode(tensor, 2, value(Values{2, 2 + 0x1p-7F, 2 + 0x1.8p-6F, 3e38F}));
  // 1, two that lie halfway and become even, and one that is in range once it is scaled.
  EXPECT_THAT(std::vector(bits.begin() + 16, bits.end()), ElementsAre(0x3f80, 0x3f80, 0x3f82, 0x7ee2));
  EXPECT_THAT(std::vector(bits.begin(), bits.begin() + 16), Each(0x7fc0));
}

TEST_F(Decoded, AreCopiedToTheTensorsThatTravelAsOne) {
  Values first(12), second(8), values(20);
  for (std::size_t i = 0; i < 20; ++i) values[i] = static_cast<float>(i);
  Operation operation = into();
  operation.scatter = {first, second};
  tensors_.set_compression(compression("none"));
  Tensor& tensor = tensors_.add({"a to b", {20}}, std::vector<Part>{{0, 0, 20}}, {12, 8});
  begin(tensor, std::move(operation), tensors_, pending_);
  decoder_.decode(tensor, 0, value(values));
  EXPECT_EQ(first[11], 11);
  EXPECT_EQ(second[0], 12);
  EXPECT_EQ(second[7], 19);
}

TEST_F(Decoded, ASumIsOfAllButThoseWhoHaveJoined) {
  transport::FrameHeader reply;
  EXPECT_EQ(decoder_.ways_of(reply), 4);
  reply.flags = with_absent(0, 3);
  EXPECT_EQ(decoder_.ways_of(reply), 1);
  reply.flags = with_absent(0, 4);
  EXPECT_THROW(static_cast<void>(decoder_.ways_of(reply)), compress::DecodeError);
}

}  // namespace
}  // namespace gradwire::kvstore
