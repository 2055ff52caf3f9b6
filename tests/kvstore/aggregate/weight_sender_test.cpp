#include "kvstore/aggregate/weight_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/kvstore/requests.h"

namespace gradwire::kvstore {
namespace {

using testing::Each;
using testing::FloatNear;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

constexpr std::size_t kElements = 256;

class SentWeights : public testing::Test {
 protected:
  SentWeights() {
    partition_.count = kElements;
    partition_.value.assign(kElements, 1.0F);
  }
  static FrameHeader request(Content content, Kind kind = Kind::kPush, std::uint64_t step = 0) {
    FrameHeader header;
    header.kind = kind;
    header.step = step;
    header.count = kElements;
    header.content = static_cast<std::uint8_t>(content);
    return header;
  }
  Frame async(const FrameHeader& header, Delivery delivery = Delivery::kFirst) {
    return sender_.async_weight(0, partition_, clocks_, header, delivery);
  }

  transport::BufferPool pool_;
  WeightSender sender_{2, pool_};
  Partitions partitions_;
  Partition& partition_ = partitions_[{4, 0}];
  PushClocks clocks_{2, AsyncPolicy{}};
};

TEST_F(SentWeights, GoWholeUnlessToldOtherwise) {
  const Frame frame = sender_.new_weight(partition_, request(Content::kSum));
  EXPECT_EQ(frame.header.kind, Kind::kValue);
  EXPECT_EQ(content_of(frame.header), Content::kWeight);
  EXPECT_THAT(floats_of(frame), Each(1.0F));
}

TEST_F(SentWeights, AreRoundedTo16Bits) {
  sender_.set_replies("fp16", partitions_);
  const Frame frame = sender_.weight(partition_, request(Content::kSum));
  EXPECT_EQ(content_of(frame.header), Content::kWeightRounded);
  EXPECT_EQ(frame.payload.size_bytes(), 2 * kElements);
  partition_.value[7] = 1e9F;  // which 16 bits do not hold
  EXPECT_EQ(content_of(sender_.weight(partition_, request(Content::kSum)).header), Content::kWeight);
}

TEST_F(SentWeights, BeginWholeAndGoOnAsDifferences) {
  sender_.set_replies("delta:int8", partitions_);
  EXPECT_EQ(content_of(sender_.new_weight(partition_, request(Content::kSum)).header), Content::kWeight);
  partition_.value.assign(kElements, 3.0F);
  const Frame delta = sender_.new_weight(partition_, request(Content::kSum));
  EXPECT_EQ(content_of(delta.header), Content::kWeightDelta);
  EXPECT_LT(delta.payload.size_bytes(), 2 * kElements);
  EXPECT_THAT(partition_.held_by_workers, Each(FloatNear(3, 0.02F)));
}

TEST_F(SentWeights, TheSameRepliesAgainChangeNothingAndOthersBeginAnew) {
  sender_.set_replies("delta:int8", partitions_);
  sender_.new_weight(partition_, request(Content::kSum));
  sender_.set_replies("delta:int8", partitions_);
  EXPECT_FALSE(partition_.held_by_workers.empty());
  sender_.set_replies("delta:int4", partitions_);
  EXPECT_TRUE(partition_.held_by_workers.empty());
  EXPECT_THROW(sender_.set_replies("delta:none", partitions_), std::invalid_argument);
}

TEST_F(SentWeights, TheLastAnswerGoesWholeToWhoLacksTheWeightBefore) {
  sender_.set_replies("delta:int8", partitions_);
  sender_.new_weight(partition_, request(Content::kSum));
  partition_.answer = sender_.new_weight(partition_, request(Content::kSum));
  EXPECT_EQ(content_of(sender_.last_answer(partition_, Content::kWeightDelta, true).header),
            Content::kWeightDelta);
  const Frame whole = sender_.last_answer(partition_, Content::kSum, true);
  EXPECT_EQ(content_of(whole.header), Content::kWeight);
  EXPECT_TRUE(whole.payload.checksum().has_value());
}

TEST_F(SentWeights, AtOnceTellEachWorkerItsOwnAndTheSameAgain) {
  sender_.set_replies("delta:int8", partitions_);
  EXPECT_EQ(content_of(async(request(Content::kWeight)).header), Content::kWeight);
  partition_.value.assign(kElements, 2.0F);
  EXPECT_EQ(content_of(async(request(Content::kWeightDelta)).header), Content::kWeightDelta);
  const Frame again = async(request(Content::kWeightDelta), Delivery::kRepeat);
  EXPECT_EQ(content_of(again.header), Content::kWeight);
  EXPECT_THAT(floats_of(again), Each(FloatNear(2, 0.02F)));
  WeightSender::forget_sent(partitions_);
  EXPECT_EQ(content_of(async(request(Content::kWeightDelta)).header), Content::kWeight);
}

TEST_F(SentWeights, AtOnceAPullThatComesAgainIsToldWhatItWasTold) {
  sender_.set_replies("delta:int8", partitions_);
  async(request(Content::kWeight, Kind::kPull, kNoStep - 1));
  partition_.value.assign(kElements, 5.0F);
  EXPECT_THAT(floats_of(async(request(Content::kWeight, Kind::kPull, kNoStep - 1))), Each(1.0F));
  EXPECT_THAT(floats_of(async(request(Content::kWeight, Kind::kPull, kNoStep - 2))), Each(5.0F));
}

}  // namespace
}  // namespace gradwire::kvstore
