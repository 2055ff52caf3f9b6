// EF21: estimates and the sum against what payloads stand for, with every codec; the algorithm itself is
// compared with the paper's in tests/oracle.
#include "compress/ef21.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

using testing::ElementsAreArray;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kElements = 1000;

Bytes step(EF21& feedback, std::span<const float> grad, std::span<const UnitScale> scales = {},
           const Position& position = {}) {
  Bytes out(feedback.codec().max_encoded_size(grad.size()));
  out.resize(feedback.encode(grad, scales, out, position).bytes);
  return out;
}

Bytes saved(const EF21& feedback) {
  Bytes state(feedback.saved_bytes());
  feedback.save(state);
  return state;
}

bool is_refused(const Codec& codec) {
  return !codec.lossy() || canonical_spec(codec.spec()).starts_with("1bit:threshold=0.1");
}

class EF21OfEveryCodec : public testing::TestWithParam<std::string> {};

TEST_P(EF21OfEveryCodec, SendsWhatTheEstimateLacks) {
  const auto codec = make(parse_spec(GetParam()));
  if (is_refused(*codec)) return;
  EF21 feedback(*codec, kElements);
  std::vector<float> estimate(kElements);
  for (unsigned round = 0; round < 4; ++round) {
    const auto grad = gaussian(kElements, round);
    const auto scales = scales_after_a_round(*codec, grad);
    const Position position{1, 2, round, 0};
    std::vector<float> change(kElements);
    for (std::size_t i = 0; i < kElements; ++i) change[i] = grad[i] - estimate[i];
    const auto expected = encoded(*codec, change, {}, scales, nullptr, position);
    ASSERT_EQ(step(feedback, grad, scales, position), expected);
    codec->decode(expected, change);
    for (std::size_t i = 0; i < kElements; ++i) estimate[i] += change[i];
    ASSERT_THAT(feedback.estimate(), ElementsAreArray(estimate));
    feedback.add(change);
    ASSERT_THAT(feedback.sum(), ElementsAreArray(estimate));
  }
}

TEST_P(EF21OfEveryCodec, ItsEstimateOfAGradientThatStaysSettlesThere) {
  const auto codec = make(parse_spec(GetParam()));
  if (is_refused(*codec)) return;
  const float threshold = GetParam() == "2bit"                           ? 0.5f
                          : GetParam().starts_with("2bit:threshold=0.1") ? 0.1f
                                                                         : 0;
  for (const auto& grad : {gaussian(300, 1), std::vector<float>(300, 0.7f), std::vector<float>(1, 0.7f)}) {
    EF21 feedback(*codec, grad.size());
    std::vector<UnitScale> scales;
    std::vector<float> answer(grad.size());
    for (std::uint64_t round = 0; round < 1500; ++round) {
      const Bytes payload = step(feedback, grad, scales, {1, 0, round, 0});
      const Payload payloads[] = {payload};
      const auto reply = replied(*codec, payloads, grad.size(), ReplyKind::kFp32, {});
      if (codec->agrees_scales()) scales.resize(1);
      codec->decode_reply(reply, 1, ReplyKind::kFp32, answer, scales);
      feedback.add(answer);
    }
    for (std::size_t i = 0; i < grad.size(); ++i) {
      ASSERT_NEAR(feedback.estimate()[i], grad[i], threshold + 1e-5f) << i << " of " << grad.size();
    }
  }
}

TEST(EF21, ACodecThatHasNoCodeForNothingIsRefused) {
  const auto codec = make(parse_spec("1bit:threshold=0.1"));
  EXPECT_THAT([&] { EF21(*codec, 10); }, testing::ThrowsMessage<std::invalid_argument>(testing::AllOf(
                                             testing::HasSubstr("ef21 of 1bit: 1bit:threshold=0.1"),
                                             testing::HasSubstr("sends -1 where the estimate lacks nothing"),
                                             testing::HasSubstr("such as 1bit:threshold=mean"))));
}

INSTANTIATE_TEST_SUITE_P(All, EF21OfEveryCodec, testing::ValuesIn(specs_under_test()), [](const auto& info) {
  std::string name;
  for (char c : info.param) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

TEST(EF21, AStepThatThrowsChangesNothing) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  EF21 feedback(*codec, kElements);
  step(feedback, gaussian(kElements, 1));
  const Bytes before = saved(feedback);
  const std::vector<UnitScale> bad(1, {std::numeric_limits<float>::quiet_NaN(), 1});
  EXPECT_THROW(step(feedback, gaussian(kElements, 2), bad), std::invalid_argument);
  Bytes small(10);
  EXPECT_THROW(feedback.encode(gaussian(kElements, 2), {}, small), std::invalid_argument);
  EXPECT_EQ(saved(feedback), before);
}

TEST(EF21, AnAnswerThatIsNotFiniteIsRefusedWhole) {
  const auto codec = make(parse_spec("int8"));
  EF21 feedback(*codec, 2);
  EXPECT_THAT(
      [&] {
        feedback.add(std::vector<float>{1, std::numeric_limits<float>::quiet_NaN()});
      },
      testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("element 1 of the answer is nan")));
  EXPECT_THAT(feedback.sum(), testing::ElementsAre(0, 0));
}

TEST(EF21, WhatIsNotFiniteIsReportedAndNotInTheEstimate) {
  const auto codec = make(parse_spec("int8"));
  EF21 feedback(*codec, 3);
  Bytes out(codec->max_encoded_size(3));
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(feedback.encode(std::vector<float>{inf, 127, -inf}, {}, out).nonfinite);
  EXPECT_THAT(feedback.estimate(), testing::ElementsAre(0, 127, 0));
  EXPECT_FALSE(feedback.encode(std::vector<float>{1, 1, 1}, {}, out).nonfinite);
}

}  // namespace
}  // namespace gradwire::compress
