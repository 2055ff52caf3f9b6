// How servers send weights: what users may ask for, and that both ends have the same floats.
#include "kvstore/wire/weight_replies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using Form = WeightReplies::Form;
using Floats = std::vector<float>;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const char* const kDeltas[] = {"delta:fp16",    "delta:bf16", "delta:int8",
                               "delta:int4",    "delta:fp8",  "delta:2bit:threshold=0.01",
                               "delta:1bit",    "delta:topk", "delta:topk:ratio=0.1,values=fp16",
                               "delta:randomk", "delta:qsgd", "delta:terngrad",
                               "delta:natural"};

TEST(WeightReplies, AreReadWithAllParametersWrittenOut) {
  EXPECT_EQ(WeightReplies().form(), Form::kFloats);
  EXPECT_EQ(WeightReplies("bf16").form(), Form::kRounded);
  EXPECT_EQ(WeightReplies("fp16").text(), "fp16");
  EXPECT_EQ(WeightReplies("delta:int8").text(), "delta:int8:block=256,nonfinite=skip");
  EXPECT_TRUE(WeightReplies("delta:int8").are_deltas());
}

TEST(WeightReplies, RefuseWhatDoesNotAddUpToAWeight) {
  const std::pair<const char*, const char*> wrong[] = {
      {"fp8", "weights='fp8' is unknown; valid are fp32, fp16, bf16 and delta:CODEC"},
      {"", "weights='' is unknown"},
      {"delta:", "weights='delta:' is unknown"},
      {"delta:topkk", "did you mean topk"},
      {"delta:none", "leaves nothing out"},
      {"delta:2bit:threshold=auto", "takes its scale from the sums of rounds"},
      {"delta:2bit", "give the most that a weight moves by in a round"},
      {"delta:2bit:threshold=0.1,nonfinite=mxnet", "nonfinite=mxnet is for residuals"},
      {"delta:2bit:threshold=0.1,lossless=on", "lossless=on is for gradients"},
      {"delta:1bit:threshold=0.5", "would move a weight that stands still"},
  };
  for (const auto& [text, says] : wrong) {
    EXPECT_THAT([text] { WeightReplies{text}; }, ThrowsMessage<std::invalid_argument>(HasSubstr(says)))
        << text;
  }
}

/// A weight in rounds: it takes steps for a while, then stands still; what is told of it follows.
class Followed {
 public:
  explicit Followed(const char* replies)
      : replies_(replies), weight_(random_floats(kElements, 1)), told_(weight_), held_(weight_) {}

  void step(float size) {
    const Floats move = random_floats(kElements, 100 + static_cast<unsigned>(rounds_));
    for (std::size_t i = 0; i < kElements; ++i) weight_[i] += size * move[i];
    tell();
  }
  void tell() {
    const auto delta = encode_delta(replies_.codec(), weight_, {3, 0, rounds_++, 0}, told_, pool_);
    ASSERT_TRUE(delta);
    bytes_ += delta->size_bytes();
    add_delta(replies_.codec(), delta->bytes(), held_);
  }
  double distance() const {
    double squares = 0;
    for (std::size_t i = 0; i < kElements; ++i) squares += std::pow(double{weight_[i]} - told_[i], 2);
    return std::sqrt(squares / kElements);
  }
  bool both_ends_agree() const { return told_ == held_; }
  std::uint64_t rounds() const { return rounds_; }
  std::size_t bytes() const { return bytes_; }

  static constexpr std::size_t kElements = 2000;

 private:
  WeightReplies replies_;
  transport::BufferPool pool_;
  Floats weight_, told_, held_;
  std::uint64_t rounds_ = 0;
  std::size_t bytes_ = 0;
};

TEST(WeightReplies, OfDeltasBothEndsHoldTheSameAndStayNearTheWeight) {
  for (const char* const replies : kDeltas) {
    Followed followed(replies);
    for (int round = 0; round < 300; ++round) followed.step(0.01F);
    EXPECT_TRUE(followed.both_ends_agree()) << replies;
    const double moving = followed.distance();
    EXPECT_LT(moving, 0.1) << replies;  // 300 steps of 0.01 have taken the weight some 0.1 away
    for (int round = 0; round < 200; ++round) followed.tell();
    EXPECT_TRUE(followed.both_ends_agree()) << replies;
    EXPECT_LT(followed.distance(), std::max(0.5 * moving, 0.006)) << replies;
    EXPECT_LT(followed.bytes(), followed.rounds() * Followed::kElements * 2.1) << replies;
  }
}

TEST(WeightReplies, WhereADifferenceIsNotFiniteItsCodecUnitIsToldWholeAndAllOthersByTheirDeltas) {
  constexpr std::size_t kUnit = compress::kUnitElements;
  transport::BufferPool pool;
  const Floats before = random_floats(3 * kUnit - 5, 1);
  Floats after = random_floats(before.size(), 2);
  for (const char* const replies : kDeltas) {
    const WeightReplies deltas(replies);
    Floats expected = before;
    for (const std::size_t begin : {std::size_t{0}, 2 * kUnit}) {
      const std::size_t count = std::min(kUnit, before.size() - begin);
      ASSERT_TRUE(encode_delta(deltas.codec(), std::span(after).subspan(begin, count), {3, 0, 7, begin},
                               std::span(expected).subspan(begin, count), pool));
    }
    for (const float wrong : {kInfinity, -kInfinity}) {
      after[kUnit + 9] = wrong;
      std::copy_n(after.begin() + kUnit, kUnit, expected.begin() + kUnit);
      Floats told = before;
      EXPECT_FALSE(encode_delta(deltas.codec(), after, {3, 0, 7, 0}, told, pool)) << replies;
      EXPECT_EQ(told, expected) << replies;
      after[kUnit + 9] = 0;
    }
    Floats told = {1, 2, 3};
    EXPECT_FALSE(encode_delta(deltas.codec(), Floats{1, kNan, 2}, {}, told, pool)) << replies;
    EXPECT_THAT(told, testing::ElementsAre(1, testing::IsNan(), 2)) << replies;
  }
}

TEST(WeightReplies, ADeltaWithOtherBytesChangesNothing) {
  Floats weight = {1, 2, 3};
  const WeightReplies deltas("delta:int8");
  EXPECT_THROW(add_delta(deltas.codec(), std::vector<std::byte>(2), weight), compress::DecodeError);
  EXPECT_EQ(weight, (Floats{1, 2, 3}));
}

TEST(WeightReplies, AWeightThatIsTooLargeForItsBitsIsNotRounded) {
  transport::BufferPool pool;
  const WeightReplies fp16("fp16"), bf16("bf16");
  EXPECT_TRUE(round_weight(fp16.codec(), Floats{65504, -65504}, pool));
  EXPECT_FALSE(round_weight(fp16.codec(), Floats{1, 65505}, pool));
  EXPECT_TRUE(round_weight(bf16.codec(), Floats{1e38F}, pool));
  for (const auto* replies : {&fp16, &bf16}) {
    EXPECT_FALSE(round_weight(replies->codec(), Floats{kNan}, pool));
    EXPECT_FALSE(round_weight(replies->codec(), Floats{-kInfinity}, pool));
  }
}

TEST(WeightReplies, WhatFitsIsRoundedBesideWhatDoesNot) {
  const WeightReplies fp16("fp16"), bf16("bf16");
  const Floats weight = {65504, 1.0001F, 65505, -kInfinity, 0.1F};
  EXPECT_EQ(round_what_fits(fp16.codec(), weight), (Floats{65504, 1, 65505, -kInfinity, 0.0999755859375F}));
  EXPECT_THAT(round_what_fits(bf16.codec(), Floats{1.0001F, kNan}),
              testing::ElementsAre(1, testing::IsNan()));
}

TEST(WeightReplies, AreRoundedToNearestEven) {
  transport::BufferPool pool;
  const WeightReplies fp16("fp16");
  const auto rounded = round_weight(fp16.codec(), Floats{1 + 0x1p-11F, 1 + 0x1.8p-10F, 0x1p-25F}, pool);
  ASSERT_TRUE(rounded);
  ASSERT_EQ(rounded->size_bytes(), 6U);
  Floats read(3);
  fp16.codec().decode(rounded->bytes(), read);
  EXPECT_EQ(read, (Floats{1, 1 + 0x1p-9F, 0}));
}

}  // namespace
}  // namespace gradwire::kvstore
