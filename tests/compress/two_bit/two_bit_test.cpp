// The fixed-threshold 2-bit rule: MXNet's vectors, replies, non-finite values.
#include "compress/two_bit/two_bit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "compress/codecs.h"

namespace gradwire::compress {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::unique_ptr<Codec> fixed(double threshold, const char* nonfinite = "skip") {
  return make({"2bit", {{"threshold", threshold}, {"nonfinite", nonfinite}}});
}

std::vector<std::byte> encode(const Codec& codec, const std::vector<float>& grad,
                              std::vector<float>& residual, bool* nonfinite = nullptr) {
  std::vector<std::byte> out(codec.max_encoded_size(grad.size()));
  const Encoded encoded = codec.encode(grad, residual, {}, out);
  if (nonfinite != nullptr) *nonfinite = encoded.nonfinite;
  out.resize(encoded.bytes);
  return out;
}

std::string hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (std::byte b : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(b));
    text += digits;
  }
  return text;
}

std::vector<float> decoded(const Codec& codec, const std::vector<std::byte>& payload, std::size_t elements) {
  std::vector<float> out(elements, -99);
  codec.decode(payload, out);
  return out;
}

TEST(TwoBitVectors, A) {
  const auto codec = fixed(0.5, "mxnet");
  std::vector<float> residual(8);
  EXPECT_EQ(hex(encode(*codec, {.5f, -.5f, .49999997f, -.49999997f, 1, -1, 0, .3f}, residual)), "e0e00000");
  EXPECT_EQ(residual, (std::vector<float>{0, 0, .49999997f, -.49999997f, .5f, -.5f, 0, .3f}));
  EXPECT_EQ(hex(encode(*codec, std::vector<float>(8), residual)), "00e00000");
  EXPECT_EQ(residual, (std::vector<float>{0, 0, .49999997f, -.49999997f, 0, 0, 0, .3f}));
}

TEST(TwoBitVectors, B) {
  const auto codec = fixed(4, "mxnet");
  std::vector<float> residual{-3, 1, -1, 5, -2, 2, 3, -7, -2, -100};
  const auto payload = encode(*codec, {-6, -2, 3, 1, 10, 5, -3, 2, -8, 0}, residual);
  EXPECT_EQ(hex(payload), "83f2a000");
  EXPECT_EQ(decoded(*codec, payload, 10), (std::vector<float>{-4, 0, 0, 4, 4, 4, 0, -4, -4, -4}));
  EXPECT_EQ(residual, (std::vector<float>{-5, -1, 2, 2, 4, 3, 0, -1, -6, -96}));
}

TEST(TwoBitVectors, C) {
  std::vector<float> residual(17);
  EXPECT_EQ(hex(encode(*fixed(0.5, "mxnet"), std::vector<float>(17, 1), residual)), "ffffffffc0000000");
  EXPECT_EQ(residual, std::vector<float>(17, .5f));
}

TEST(TwoBitVectors, D) {
  std::vector<float> residual(16);
  EXPECT_EQ(hex(encode(*fixed(0.5, "mxnet"), {1, -1, 0, 1, 1, -1, 0, 1, 1, -1, 0, 1, 1, -1, 0, 1}, residual)),
            "e3e3e3e3");
}

TEST(TwoBitVectors, E) {
  const auto one_at = [](std::size_t index, float value) {
    std::vector<float> grad(16);
    std::vector<float> residual(16);
    grad[index] = value;
    return hex(encode(*fixed(0.5, "mxnet"), grad, residual));
  };
  EXPECT_EQ(one_at(0, 1), "c0000000");
  EXPECT_EQ(one_at(15, -1), "00000002");
  EXPECT_EQ(one_at(4, -1), "00800000");
}

void check_sequence(const std::vector<float>& grads, const std::vector<std::string>& bytes,
                    const std::vector<float>& residuals) {
  for (const char* nonfinite : {"mxnet", "skip"}) {
    const auto codec = fixed(0.5, nonfinite);
    std::vector<float> residual(1);
    for (std::size_t i = 0; i < grads.size(); ++i) {
      EXPECT_EQ(hex(encode(*codec, {grads[i]}, residual)), bytes[i] + "000000") << i;
      EXPECT_EQ(residual[0], residuals[i]) << i;
    }
  }
}

TEST(TwoBitVectors, F) {
  check_sequence({.4f, .5f - .4f, .2f, .5f - .2f, .5f}, {"00", "c0", "00", "c0", "c0"}, {.4f, 0, .2f, 0, 0});
}

TEST(TwoBitVectors, G) {
  check_sequence({.4f, .5f - .3f, .2f, .5f - .3f, -.5f, -.5f}, {"00", "c0", "00", "c0", "80", "80"},
                 {.4f, .100000024f, .30000001f, 0, 0, 0});
}

TEST(TwoBitVectors, H) {
  std::vector<float> residual(4);
  bool nonfinite = false;
  EXPECT_EQ(hex(encode(*fixed(0.5, "mxnet"), {kNan, kInf, -kInf, -0.0f}, residual, &nonfinite)), "38000000");
  EXPECT_TRUE(std::isnan(residual[0]));
  EXPECT_EQ(residual[1], kInf);
  EXPECT_EQ(residual[2], -kInf);
  EXPECT_EQ(residual[3], 0);
  EXPECT_TRUE(nonfinite);
}

TEST(TwoBitVectors, I) {
  std::vector<float> grad(17);
  for (int i = 0; i < 17; ++i) grad[i] = static_cast<float>(0.1 * i - 0.8);
  std::vector<float> residual(17);
  EXPECT_EQ(hex(encode(*fixed(0.5, "mxnet"), grad, residual)), "aa00003fc0000000");
  EXPECT_FLOAT_EQ(residual[0], -.3f);
}

TEST(TwoBitFixed, SkipSendsNothingAndKeepsTheResidual) {
  std::vector<float> grad(70, 1);
  std::vector<float> residual(70, .25f);
  grad[3] = kNan;
  grad[64] = -kInf;
  residual[5] = kNan;
  residual[66] = kInf;
  bool nonfinite = false;
  const auto codec = fixed(0.5);
  const auto out = decoded(*codec, encode(*codec, grad, residual, &nonfinite), 70);
  EXPECT_TRUE(nonfinite);
  for (std::size_t i = 0; i < 70; ++i) {
    const bool skipped = i == 3 || i == 64 || i == 5 || i == 66;
    EXPECT_EQ(out[i], skipped ? 0 : .5f) << i;
    if (i == 5 || i == 66) continue;
    EXPECT_EQ(residual[i], skipped ? .25f : .75f) << i;
  }
  EXPECT_TRUE(std::isnan(residual[5]));
  EXPECT_EQ(residual[66], kInf);
}

TEST(TwoBitFixed, SkipTreatsAnOverflowingSumAsNonFinite) {
  std::vector<float> residual{3e38f};
  bool nonfinite = false;
  EXPECT_EQ(hex(encode(*fixed(0.5), {3e38f}, residual, &nonfinite)), "00000000");
  EXPECT_TRUE(nonfinite);
  EXPECT_EQ(residual[0], 3e38f);
}

TEST(TwoBitFixed, Code01DecodesToZero) {
  const auto codec = fixed(0.5);
  EXPECT_EQ(decoded(*codec, {std::byte{0x55}, std::byte{0x1b}, std::byte{0}, std::byte{0}}, 8),
            (std::vector<float>{0, 0, 0, 0, 0, 0, -.5f, .5f}));
}

TEST(TwoBitFixed, SumHasOneRounding) {
  const auto codec = fixed(0.1);
  const std::vector<std::byte> up{std::byte{0xc0}, std::byte{0}, std::byte{0}, std::byte{0}};
  const std::vector<Payload> payloads(7, Payload(up));
  std::vector<float> sum(1);
  codec->decode_sum(payloads, sum);
  EXPECT_EQ(sum[0], 7 * 0.1f);
}

/// One payload of random codes, 01 among them, per way.
std::vector<std::vector<std::byte>> random_payloads(std::size_t ways, std::size_t elements,
                                                    std::mt19937& random) {
  std::vector<std::vector<std::byte>> payloads(ways, std::vector<std::byte>((elements + 15) / 16 * 4));
  for (auto& payload : payloads) {
    for (std::byte& b : payload) b = static_cast<std::byte>(random() & 0xff);
  }
  return payloads;
}

TEST(TwoBitFixed, ExactReplyHoldsTheIntegerSumOfAnyNumberOfWays) {
  std::mt19937 random(3);
  for (std::size_t ways : {1, 2, 3, 4, 7, 8, 9, 14, 15, 16, 31, 64, 127, 128, 129, 300}) {
    for (std::size_t elements : {1, 63, 64, 65, 500, 5000}) {
      const auto codec = fixed(0.375);
      const auto bytes = random_payloads(ways, elements, random);
      const std::vector<Payload> payloads(bytes.begin(), bytes.end());
      std::vector<float> sum(elements);
      codec->decode_sum(payloads, sum);
      for (std::size_t i = 0; i < elements; ++i) {
        int k = 0;
        for (const auto& payload : bytes) k += two_bit::code_at(payload.data(), i);
        ASSERT_EQ(sum[i], static_cast<float>(k) * .375f);
      }
      for (ReplyKind kind : {ReplyKind::kExact, ReplyKind::kFp32}) {
        std::vector<std::byte> reply(codec->max_reply_size(elements, ways, kind));
        ASSERT_EQ(codec->encode_reply(payloads, elements, kind, {}, reply).bytes, reply.size());
        std::vector<float> answer(elements);
        codec->decode_reply(reply, ways, kind, answer, {});
        ASSERT_EQ(answer, sum) << ways << " ways, " << elements << " elements";
      }
    }
  }
}

TEST(TwoBitFixed, ExactReplySizeIsTheDocumentedOne) {
  const auto codec = fixed(0.5);
  EXPECT_EQ(codec->max_reply_size(640, 2, ReplyKind::kExact), 640u * 3 / 8);
  EXPECT_EQ(codec->max_reply_size(640, 8, ReplyKind::kExact), 640u * 5 / 8);
  EXPECT_EQ(codec->max_reply_size(640, 64, ReplyKind::kExact), 640u * 8 / 8);
  EXPECT_EQ(codec->max_reply_size(1, 2, ReplyKind::kExact), 24u);
}

TEST(TwoBitFixed, ExactReplyWithAnImpossibleCountIsRefused) {
  const auto codec = fixed(0.5);
  std::vector<std::byte> reply(24, std::byte{0});
  reply[0] = reply[8] = reply[16] = std::byte{1};  // element 0 has the count 7 of 2 ways
  std::vector<float> out(1);
  EXPECT_THROW(codec->decode_reply(reply, 2, ReplyKind::kExact, out, {}), DecodeError);
}

TEST(TwoBitFixed, ServerResidualStaysBoundedUnderConstantPushes) {
  for (std::size_t ways : {1, 2, 3, 7, 8, 64}) {
    for (int start : {0, 1}) {
      const float threshold = 0.25f;
      const float level = static_cast<float>(ways) * threshold;
      const auto codec = fixed(threshold);
      constexpr std::size_t kElements = 3 * 64;
      // Element i gets sums spread over [-ways, ways]: the first i % (ways + 1) workers send its sign.
      std::vector<std::vector<std::byte>> bytes(ways, std::vector<std::byte>(kElements / 4));
      std::vector<double> pushed(kElements);
      for (std::size_t i = 0; i < kElements; ++i) {
        const bool up = i % 3 != 0;
        for (std::size_t w = 0; w < i % (ways + 1); ++w) {
          bytes[w][i / 4] |= static_cast<std::byte>((up ? 3 : 2) << (6 - 2 * (i % 4)));
          pushed[i] += up ? threshold : -threshold;
        }
      }
      const std::vector<Payload> payloads(bytes.begin(), bytes.end());
      std::vector<float> residual(kElements, start == 0 ? 0 : level / 2);
      const std::vector<float> initial = residual;
      std::vector<double> answered(kElements);
      std::vector<std::byte> reply(codec->max_reply_size(kElements, ways, ReplyKind::kSame));
      std::vector<float> out(kElements);
      const int rounds = 10000;
      for (int round = 0; round < rounds; ++round) {
        codec->encode_reply(payloads, kElements, ReplyKind::kSame, residual, reply);
        codec->decode_reply(reply, ways, ReplyKind::kSame, out, {});
        for (std::size_t i = 0; i < kElements; ++i) {
          answered[i] += out[i];
          ASSERT_LE(std::fabs(residual[i]), level / 2) << ways << " ways, round " << round;
        }
      }
      for (std::size_t i = 0; i < kElements; ++i) {
        EXPECT_EQ(answered[i] + residual[i], pushed[i] * rounds + initial[i]) << i;
      }
    }
  }
}

TEST(TwoBitFixed, SameReplyWithoutResidualRoundsTheSumToTheNearestLevel) {
  const auto codec = fixed(1);
  const std::vector<std::byte> up{std::byte{0xff}, std::byte{0}, std::byte{0}, std::byte{0}};
  const std::vector<std::byte> some{std::byte{0xe0}, std::byte{0}, std::byte{0}, std::byte{0}};
  const std::vector<Payload> payloads{up, some, some};  // sums 3, -1, 1, 1 of 3 ways: level 3
  std::vector<std::byte> reply(4);
  codec->encode_reply(payloads, 4, ReplyKind::kSame, {}, reply);
  std::vector<float> out(4);
  codec->decode_reply(reply, 3, ReplyKind::kSame, out, {});
  EXPECT_EQ(out, (std::vector<float>{3, 0, 0, 0}));
}

TEST(TwoBitFixed, DrainsALargeResidualOneThresholdAtATime) {
  const auto codec = fixed(0.5, "mxnet");
  std::vector<float> residual(1);
  encode(*codec, {-10}, residual);
  EXPECT_EQ(residual[0], -9.5f);
  for (int i = 0; i < 19; ++i) encode(*codec, {0}, residual);
  EXPECT_EQ(residual[0], 0);
}

TEST(Bf16Residuals, OneOfAnotherLengthIsRefused) {
  const std::vector<float> grad(20, 1.0f);
  std::vector<std::byte> residual(40);
  std::vector<std::byte> out(200);
  for (const char* spec : {"2bit", "fp16", "bf16", "int8", "nf2", "qsgd"}) {
    const auto codec = make(parse_spec(spec));
    ASSERT_NE(codec->bf16_residuals(), nullptr) << spec;
    const auto encode = [&](std::span<std::byte> kept, std::span<std::byte> to) {
      codec->bf16_residuals()->encode_bf16(grad, kept, to, {});
    };
    EXPECT_NO_THROW(encode(residual, out)) << spec;
    EXPECT_THROW(encode(std::span(residual).first(38), out), std::invalid_argument) << spec;
    EXPECT_THROW(encode({}, out), std::invalid_argument) << spec;
    EXPECT_THROW(encode(residual, std::span(out).first(1)), std::invalid_argument) << spec;
  }
  for (const char* spec : {"none", "1bit", "topk", "2bit:nonfinite=mxnet"})
    EXPECT_EQ(make(parse_spec(spec))->bf16_residuals(), nullptr) << spec;
}

}  // namespace
}  // namespace gradwire::compress
