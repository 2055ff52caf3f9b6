// Agreed scales: the rule that makes them, the bytes that carry them, rounds that mix forms.
#include "compress/two_bit/two_bit_auto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "compress/two_bit/agreed_scale.h"
#include "compress/two_bit/two_bit_sums_scalar.h"
#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

using Bytes = std::vector<std::byte>;

constexpr float kLargest = std::numeric_limits<float>::max();

template <typename T>
T at(const Bytes& bytes, std::size_t offset) {
  return load<T>(bytes.data() + offset);
}

/// The first round of these gradients: dense payloads, and the scales that the reply brings.
struct FirstRound {
  std::vector<Bytes> payloads;
  std::vector<float> sum;
  std::vector<UnitScale> next;
};

FirstRound first_round(const Codec& codec, const std::vector<std::vector<float>>& grads, ReplyKind kind) {
  FirstRound round;
  for (const auto& grad : grads) round.payloads.push_back(encoded(codec, grad, {}, {}));
  const std::vector<Payload> payloads(round.payloads.begin(), round.payloads.end());
  round.sum.resize(grads[0].size());
  round.next.resize(unit_count(grads[0].size()));
  codec.decode_reply(replied(codec, payloads, grads[0].size(), kind, {}), grads.size(), kind, round.sum,
                     round.next);
  return round;
}

TEST(RoundTo8Bits, KeepsEightSignificantBitsToNearestEven) {
  EXPECT_EQ(round_to_8_bits(1.0), 1.0f);
  EXPECT_EQ(round_to_8_bits(255.0), 255.0f);
  EXPECT_EQ(round_to_8_bits(257.0), 256.0f);
  EXPECT_EQ(round_to_8_bits(259.0), 260.0f);
  EXPECT_EQ(round_to_8_bits(0.0), 0.0f);
  const float largest = std::bit_cast<float>(0x7f7f0000u);
  EXPECT_EQ(round_to_8_bits(kLargest), largest);
  EXPECT_EQ(round_to_8_bits(std::numeric_limits<double>::infinity()), largest);
  for (int k : {-65535, -12345, 3, 257, 65535}) {
    for (float level : {round_to_8_bits(0.1), round_to_8_bits(1e-3), round_to_8_bits(7.77)}) {
      EXPECT_EQ(double{static_cast<float>(k) * level}, double{level} * k);
    }
  }
}

TEST(AgreedScale, FollowsTheWrittenRule) {
  // 1.5 * 12 / 4 = 4.5; 10 / 3 rounds to 3.328125.
  EXPECT_EQ(agreed_scale({12, 10, 3}, 1.5f, 4), (UnitScale{4.5f, 3.328125f}));
  // Nothing was sent, or what was sent had 4.9 of 36 / 4 = 9 at least: half the mean, and the mean.
  EXPECT_EQ(agreed_scale({12, 0, 0}, 1.5f, 4), (UnitScale{1.5f, 3}));
  EXPECT_EQ(agreed_scale({12, 0, 0}, 0.25f, 4), (UnitScale{0.75f, 3}));
  EXPECT_EQ(agreed_scale({12, 2.21, 1}, 1.5f, 4), (UnitScale{1.5f, 3}));
  EXPECT_EQ(agreed_scale({12, 3, 1}, 1.5f, 4), (UnitScale{4.5f, 3}));
  // What is below half the level would move away from 0.
  EXPECT_EQ(agreed_scale({12, 11, 1}, 1.5f, 4), (UnitScale{5.5f, 11}));
  EXPECT_EQ(agreed_scale({0, 0, 0}, 1.5f, 4), UnitScale{});
  EXPECT_EQ(agreed_scale({1e-44, 1e-44, 1}, 1.5f, 1000), UnitScale{});
}

TEST(TwoBitAuto, FirstRoundIsDenseAndAgreesTheScales) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  const std::vector<float> grad{1, -2, 3, -6};  // sum 12, threshold 1.5 * 3 = 4.5, selected 6
  const Bytes payload = encoded(*codec, grad, {}, {});
  ASSERT_EQ(payload.size(), 8u + 16 + 16);
  EXPECT_EQ(at<std::uint32_t>(payload, 0), 0u);
  EXPECT_EQ(at<std::uint32_t>(payload, 4), 1u);
  EXPECT_EQ(at<float>(payload, 8), 0.0f);
  EXPECT_EQ(at<float>(payload, 12), 12.0f);
  EXPECT_EQ(at<float>(payload, 16), 6.0f);
  EXPECT_EQ(at<std::uint32_t>(payload, 20), 1u);
  EXPECT_EQ(at<float>(payload, 28), -2.0f);
  for (ReplyKind kind : {ReplyKind::kFp32, ReplyKind::kExact, ReplyKind::kSame}) {
    const FirstRound round = first_round(*codec, {grad, {0, 0, 1, 0}}, kind);
    EXPECT_EQ(round.sum, (std::vector<float>{1, -2, 4, -6}));
    // 1.5 * 13 / 8 = 2.4375; the second worker selects its 1: (6 + 1) / 2.
    EXPECT_EQ(round.next, (std::vector<UnitScale>{{2.4375f, 3.5f}}));
  }
}

TEST(TwoBitAuto, CodesCarryLevelAndSumsOfGradientPlusResidual) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  const std::vector<float> grad{1, -2, 3, -6};
  std::vector<float> residual{0.5f, 0, 0, 1};
  const std::vector<UnitScale> scales{{2, 4}};
  const Bytes payload = encoded(*codec, grad, residual, scales);
  ASSERT_EQ(payload.size(), 8u + 16 + 4);
  EXPECT_EQ(at<std::uint32_t>(payload, 0), 1u);
  EXPECT_EQ(at<float>(payload, 8), 4.0f);
  EXPECT_EQ(at<float>(payload, 12), 11.5f);
  EXPECT_EQ(at<float>(payload, 16), 10.0f);
  EXPECT_EQ(at<std::uint32_t>(payload, 20), 3u);
  EXPECT_EQ(at<std::uint32_t>(payload, 24), 0x2eu);  // 00 10 11 10
  EXPECT_EQ(residual, (std::vector<float>{1.5f, 2, -1, -1}));
}

TEST(TwoBitAuto, ScalesFollowTheGradients) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  const std::size_t elements = kUnitElements + 500;
  std::vector<UnitScale> scales;
  std::vector<std::vector<float>> residuals(2, std::vector<float>(elements));
  double mean_before = 1;
  for (float deviation : {1.0f, 1.0f, 1e-3f, 1e-3f, 1e-3f, 1e-3f, 1e-3f, 1e-3f}) {
    std::vector<Bytes> bytes;
    for (unsigned w = 0; w < 2; ++w) {
      bytes.push_back(encoded(*codec, gaussian(elements, w, deviation), residuals[w], scales));
    }
    const std::vector<Payload> payloads(bytes.begin(), bytes.end());
    scales.resize(2);
    std::vector<float> sum(elements);
    codec->decode_reply(replied(*codec, payloads, elements, ReplyKind::kExact, {}), 2, ReplyKind::kExact, sum,
                        scales);
    double mean = 0;
    for (std::size_t i = 0; i < kUnitElements; ++i) mean += std::fabs(sum[i]);
    EXPECT_GT(mean + mean_before, 0) << "two rounds brought nothing";
    mean_before = mean;
    for (const UnitScale& scale : scales) {
      EXPECT_GT(scale.level, 0.8f * scale.threshold);
      EXPECT_EQ(scale.level, round_to_8_bits(scale.level));
    }
  }
}

TEST(TwoBitAuto, ExactSumsAreIntegersTimesTheLevel) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  const std::size_t elements = kUnitElements + 100;
  std::vector<std::vector<float>> grads;
  for (unsigned w = 0; w < 5; ++w) grads.push_back(gaussian(elements, w));
  const FirstRound round = first_round(*codec, grads, ReplyKind::kExact);
  std::vector<Bytes> bytes;
  for (const auto& grad : grads) bytes.push_back(encoded(*codec, grad, {}, round.next));
  const std::vector<Payload> payloads(bytes.begin(), bytes.end());
  const Bytes reply = replied(*codec, payloads, elements, ReplyKind::kExact, {});
  EXPECT_EQ(reply.size(), 8 + 2 * 16 + two_bit::plane_bytes(elements, 5));
  std::vector<float> sum(elements);
  codec->decode_reply(reply, 5, ReplyKind::kExact, sum, {});
  for (std::size_t i = 0; i < elements; ++i) {
    const float k = sum[i] / round.next[i / kUnitElements].level;
    ASSERT_EQ(k, std::round(k));
    ASSERT_LE(std::fabs(k), 5);
  }
}

TEST(TwoBitAuto, DenseAndCodesMayMixInOneRound) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  const std::size_t elements = kUnitElements + 3000;
  const std::vector<UnitScale> scales(2, UnitScale{0.5f, 0.75f});
  const std::vector<Bytes> bytes{encoded(*codec, gaussian(elements, 1), {}, scales),
                                 encoded(*codec, gaussian(elements, 2), {}, {}),
                                 encoded(*codec, gaussian(elements, 3), {}, scales)};
  const std::vector<Payload> payloads(bytes.begin(), bytes.end());
  std::vector<float> expected(elements);
  std::vector<float> one(elements);
  for (std::size_t w = 0; w < 3; ++w) {
    codec->decode(payloads[w], one);
    for (std::size_t i = 0; i < elements; ++i) expected[i] = w == 0 ? one[i] : expected[i] + one[i];
  }
  std::vector<float> sum(elements);
  codec->decode_sum(payloads, sum);
  EXPECT_EQ(sum, expected);
  for (ReplyKind kind : {ReplyKind::kFp32, ReplyKind::kExact, ReplyKind::kSame}) {
    const Bytes reply = replied(*codec, payloads, elements, kind, {});
    EXPECT_EQ(at<std::uint32_t>(reply, 0), 0u);
    codec->decode_reply(reply, 3, kind, sum, {});
    EXPECT_EQ(sum, expected);
  }
}

TEST(TwoBitAuto, DenseSameReplyEmptiesTheServersResidual) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  const Bytes payload = encoded(*codec, gaussian(100, 1), {}, {});
  const Payload payloads[] = {payload};
  std::vector<float> residual(100, 0.5f);
  std::vector<float> sum(100);
  codec->decode_reply(replied(*codec, payloads, 100, ReplyKind::kSame, residual), 1, ReplyKind::kSame, sum,
                      {});
  EXPECT_EQ(residual, std::vector<float>(100));
  const auto grad = gaussian(100, 1);
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(sum[i], 0.5f + grad[i]);
}

TEST(TwoBitAuto, PayloadsWithOtherLevelsAreNamed) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  const auto grad = gaussian(kUnitElements + 10, 1);
  const Bytes a = encoded(*codec, grad, {}, std::vector<UnitScale>(2, UnitScale{0.5f, 0.75f}));
  const Bytes dense = encoded(*codec, grad, {}, {});
  const Bytes b = encoded(*codec, grad, {}, std::vector<UnitScale>{{0.5f, 0.75f}, {0.5f, 1}});
  const Payload payloads[] = {dense, a, a, b};
  std::vector<float> sum(grad.size());
  try {
    codec->decode_sum(payloads, sum);
    FAIL() << "levels that differ were accepted";
  } catch (const DecodeError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("payload 3 of 4 has level 1 in unit 1"),
                                             testing::HasSubstr("payload 1 has 0.75")));
  }
}

TEST(TwoBitAuto, NonFiniteValuesStayOutOfTheSums) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  std::vector<float> grad{1, 2, std::numeric_limits<float>::quiet_NaN(), -3,
                          std::numeric_limits<float>::infinity()};
  // Dense: the threshold is 1.5 * 6 / 5, which 2 and 3 reach.
  for (const auto& [scales, selected, count] : {std::tuple{std::vector<UnitScale>{}, 5.0f, 2u},
                                                std::tuple{std::vector<UnitScale>{{2.5f, 2.5f}}, 3.0f, 1u}}) {
    bool nonfinite = false;
    const Bytes payload = encoded(*codec, grad, {}, scales, &nonfinite);
    EXPECT_TRUE(nonfinite);
    EXPECT_EQ(at<float>(payload, 12), 6.0f);
    EXPECT_EQ(at<float>(payload, 16), selected);
    EXPECT_EQ(at<std::uint32_t>(payload, 20), count);
  }
}

TEST(TwoBitAuto, SumsThatOverflowAreClamped) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  const std::vector<float> grad(64, 3e38f);
  const FirstRound round = first_round(*codec, {grad}, ReplyKind::kFp32);
  EXPECT_EQ(at<float>(round.payloads[0], 12), kLargest);
  codec->validate(round.payloads[0], 64);
  EXPECT_TRUE(std::isfinite(round.next[0].threshold) && std::isfinite(round.next[0].level));
}

TEST(TwoBitAuto, ZeroGradientsAgreeOnNothingAndRecover) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  FirstRound round = first_round(*codec, {std::vector<float>(100)}, ReplyKind::kExact);
  EXPECT_EQ(round.next, std::vector<UnitScale>(1));
  std::vector<float> residual(100);
  const auto grad = gaussian(100, 1);
  const Bytes payload = encoded(*codec, grad, residual, round.next);
  EXPECT_EQ(residual, grad);
  const Payload payloads[] = {payload};
  std::vector<float> sum(100, 1);
  codec->decode_reply(replied(*codec, payloads, 100, ReplyKind::kExact, {}), 1, ReplyKind::kExact, sum,
                      round.next);
  EXPECT_EQ(sum, std::vector<float>(100));
  EXPECT_GT(round.next[0].threshold, 0);
  EXPECT_EQ(round.next[0].level, 2 * round.next[0].threshold);
}

TEST(TwoBitAuto, AStateThatSentNothingForLongComesToLife) {
  // As checkpoints hold it that were written when such a state had no way out.
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  const std::vector<float> grad(60, 0.7f);
  std::vector<float> residual(60, 50);
  std::vector<UnitScale> scales{{75, 75}};
  std::vector<float> sum(60);
  float arrived = 0;
  for (int round = 0; round < 4; ++round) {
    const Bytes payload = encoded(*codec, grad, residual, scales);
    const Payload payloads[] = {payload};
    codec->decode_reply(replied(*codec, payloads, 60, ReplyKind::kExact, {}), 1, ReplyKind::kExact, sum,
                        scales);
    arrived += sum[0];
  }
  EXPECT_LE(std::fabs(residual[0]), 2 * 0.7f);
  EXPECT_NEAR(arrived + residual[0], 50 + 4 * 0.7f, 1e-4f);
}

TEST(TwoBitAuto, SameReplyKeepsItsResidualBoundedUnderConstantPushes) {
  for (std::size_t ways : {1, 2, 8}) {
    const auto codec = make(parse_spec("2bit:threshold=auto"));
    const std::size_t elements = 512;
    std::vector<Bytes> bytes;
    const std::vector<UnitScale> scales{{0.25f, 0.5f}};
    for (std::size_t w = 0; w < ways; ++w) {
      bytes.push_back(encoded(*codec, gaussian(elements, static_cast<unsigned>(w)), {}, scales));
    }
    const std::vector<Payload> payloads(bytes.begin(), bytes.end());
    std::vector<float> pushed(elements);
    codec->decode_sum(payloads, pushed);
    std::vector<float> residual(elements);
    std::vector<double> answered(elements);
    std::vector<float> out(elements);
    float largest[2] = {0, 0};  // in either half of the rounds: the second must not go on growing
    const int rounds = 16000;
    for (int round = 0; round < rounds; ++round) {
      const Bytes reply = replied(*codec, payloads, elements, ReplyKind::kSame, residual);
      codec->decode_reply(reply, ways, ReplyKind::kSame, out, {});
      for (std::size_t i = 0; i < elements; ++i) {
        answered[i] += out[i];
        largest[round * 2 / rounds] = std::max(largest[round * 2 / rounds], std::fabs(residual[i]));
      }
    }
    EXPECT_LE(largest[1], largest[0] * 1.1f) << ways << " ways";
    for (std::size_t i = 0; i < elements; ++i) {
      ASSERT_NEAR(answered[i] + residual[i], double{pushed[i]} * rounds, 0.5) << i;
    }
  }
}

TEST(TwoBitAuto, SameReplyOfEqualSumsIsNeverEmpty) {
  const auto codec = make(parse_spec("2bit:threshold=auto,reply_scale=1.5"));
  const Bytes payload = encoded(*codec, std::vector<float>(20, 1), {}, std::vector<UnitScale>{{0.5f, 0.75f}});
  const Payload payloads[] = {payload};
  std::vector<float> out(20);
  codec->decode_reply(replied(*codec, payloads, 20, ReplyKind::kSame, {}), 1, ReplyKind::kSame, out, {});
  EXPECT_EQ(out, std::vector<float>(20, 0.75f));
}

TEST(TwoBitAuto, HostileHeadersAreDecodeErrors) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  const auto grad = gaussian(100, 1);
  const Bytes good = encoded(*codec, grad, {}, std::vector<UnitScale>{{0.5f, 0.75f}});
  const auto with = [&](std::size_t offset, std::uint32_t word) {
    Bytes bad = good;
    store(word, bad.data() + offset);
    return bad;
  };
  codec->validate(good, 100);
  for (const Bytes& bad : {with(0, 2), with(4, 0), with(4, 2), with(8, 0x7f800000), with(8, 0xbf800000),
                           with(12, 0x7fc00000), with(16, 0xff800000), with(20, 101)}) {
    EXPECT_THROW(codec->validate(bad, 100), DecodeError);
  }
  Bytes dense = encoded(*codec, grad, {}, {});
  dense[11] = std::byte{0x3f};
  EXPECT_THROW(codec->validate(dense, 100), DecodeError);
}

TEST(TwoBitAuto, BadScalesAreAnInvalidArgument) {
  const auto codec = make(parse_spec("2bit:threshold=auto"));
  const auto grad = gaussian(100, 1);
  EXPECT_THROW(encoded(*codec, grad, {}, std::vector<UnitScale>(2)), std::invalid_argument);
  EXPECT_THROW(encoded(*codec, grad, {}, std::vector<UnitScale>{{-1, 1}}), std::invalid_argument);
  EXPECT_THROW(encoded(*codec, grad, {}, std::vector<UnitScale>{{1, kLargest * 2}}), std::invalid_argument);
}

}  // namespace
}  // namespace gradwire::compress
