// 1bit in both forms: the mean, MXNet's rule, votes and majorities.
#include "compress/one_bit/one_bit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "compress/one_bit/bit_plane_counters.h"
#include "compress/one_bit/one_bit_scalar.h"
#include "compress/payload/little_endian.h"
#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(OneBit, SendsTheMeanOfEachUnit) {
  const auto codec = make(parse_spec("1bit"));
  const std::size_t elements = kUnitElements + 300;
  auto grad = gaussian(elements, 1);
  for (std::size_t i = kUnitElements; i < elements; ++i) grad[i] *= 100;
  std::vector<float> out(elements);
  codec->decode(encoded(*codec, grad, {}, {}), out);
  const auto mean = [&](std::size_t first, std::size_t last) {
    double sum = 0;
    for (std::size_t i = first; i < last; ++i) sum += std::fabs(double{grad[i]});
    return sum / static_cast<double>(last - first);
  };
  for (std::size_t i : {std::size_t{0}, std::size_t{77}, kUnitElements, elements - 1}) {
    const double level = i < kUnitElements ? mean(0, kUnitElements) : mean(kUnitElements, elements);
    EXPECT_NEAR(out[i], std::copysign(level, grad[i]), 1e-4 * level) << i;
  }
}

TEST(OneBit, AUnitOfZerosSendsZero) {
  const auto codec = make(parse_spec("1bit"));
  const std::vector<float> zeros(100);
  std::vector<float> residual(100);
  std::vector<float> out(100, 1);
  codec->decode(encoded(*codec, zeros, residual, {}), out);
  EXPECT_EQ(out, zeros);
  EXPECT_EQ(residual, zeros);
}

TEST(OneBit, WordsOfZerosDoNotMoveAndHaveNoPartInTheMean) {
  const auto codec = make(parse_spec("1bit"));
  for (std::size_t elements : {std::size_t{96}, std::size_t{100}, kUnitElements + 96}) {
    std::vector<float> grad(elements);
    std::vector<float> residual(elements);
    std::vector<float> out(elements);
    for (std::size_t i = 32; i < 64; ++i) grad[i] = i % 2 == 0 ? 3.0f : -1.0f;
    for (int round = 0; round < 50; ++round) {
      codec->decode(encoded(*codec, grad, residual, {}), out);
      for (std::size_t i = 0; i < elements; ++i) {
        if (i >= 32 && i < 64) continue;
        ASSERT_EQ(out[i], 0) << i;
        ASSERT_EQ(residual[i], 0) << i;
      }
      if (round == 0) {
        EXPECT_EQ(std::fabs(out[32]), 2);
      }
    }
  }
}

TEST(OneBit, SignsThatAreTheMarkOfZerosAreNotTakenForIt) {
  const auto codec = make(parse_spec("1bit"));
  std::vector<float> grad(64);
  for (std::size_t i = 0; i < 32; ++i)
    grad[i] = (one_bit::kZeroWord & one_bit::bit_in_word(i)) != 0 ? 1.0f : -1.0f;
  std::vector<float> residual(64);
  std::vector<float> out(64);
  codec->decode(encoded(*codec, grad, residual, {}), out);
  EXPECT_EQ(out[0], -1) << "turned round";
  EXPECT_EQ(residual[0], 2) << "and made up for";
  for (std::size_t i = 1; i < 32; ++i) EXPECT_EQ(out[i], grad[i]) << i;
  for (std::size_t i = 32; i < 64; ++i) EXPECT_EQ(out[i], 0) << i;
}

TEST(OneBit, SumsOfServersLeaveZerosAlone) {
  const auto codec = make(parse_spec("1bit"));
  std::vector<float> grad(128, 0.5f);
  std::fill_n(grad.begin() + 32, 64, 0.0f);
  const auto payload = encoded(*codec, grad, {}, {});
  const Payload payloads[] = {payload, payload};
  std::vector<float> residual(128);
  std::vector<float> out(128);
  for (int round = 0; round < 5; ++round) {
    codec->decode_reply(replied(*codec, payloads, 128, ReplyKind::kSame, residual), 2, ReplyKind::kSame, out,
                        {});
    for (std::size_t i = 0; i < 128; ++i) EXPECT_EQ(out[i], 2 * grad[i]) << i;
  }
}

TEST(OneBit, PayloadsWithoutTheMarkAreRefused) {
  EXPECT_THAT(
      [] {
        from_wire(WireId::kOneBit, {0, 0, 0, 0});
      },
      ThrowsMessage<DecodeError>(HasSubstr("1bit: the sender's payloads are of form 0")));
}

TEST(OneBit, ANonFiniteGradientCountsAsZero) {
  for (const char* spec : {"1bit", "1bit:threshold=0.25"}) {
    const auto codec = make(parse_spec(spec));
    std::vector<float> grad(100, 0.5f);
    grad[7] = std::numeric_limits<float>::infinity();
    std::vector<float> residual(100, 0.125f);
    bool nonfinite = false;
    std::vector<float> out(100);
    codec->decode(encoded(*codec, grad, residual, {}, &nonfinite), out);
    EXPECT_TRUE(nonfinite);
    EXPECT_FLOAT_EQ(out[7] + residual[7], 0.125f) << spec;
    EXPECT_FLOAT_EQ(out[8] + residual[8], 0.625f) << spec;
  }
}

TEST(OneBitVotes, AreCountedExactly) {
  const auto codec = make(parse_spec("1bit:threshold=0.25"));
  std::vector<std::vector<std::byte>> bytes;
  std::vector<float> expected(130);
  for (unsigned w = 0; w < 5; ++w) {
    const auto grad = gaussian(130, w);
    bytes.push_back(encoded(*codec, grad, {}, {}));
    for (std::size_t i = 0; i < grad.size(); ++i) expected[i] += grad[i] > 0.25f ? 1.0f : -1.0f;
  }
  const std::vector<Payload> payloads(bytes.begin(), bytes.end());
  const auto reply = replied(*codec, payloads, 130, ReplyKind::kExact, {});
  EXPECT_EQ(reply.size(), 3u * 8 * 3) << "three planes for counts of 0 to 5, three groups of 64";
  std::vector<float> sum(130);
  codec->decode_reply(reply, 5, ReplyKind::kExact, sum, {});
  EXPECT_EQ(sum, expected);
}

TEST(OneBitVotes, ACountAboveTheNumberOfVotersIsRefused) {
  const auto codec = make(parse_spec("1bit:threshold=1"));
  std::vector<std::byte> reply(one_bit::plane_bytes(10, 5), std::byte{0});
  std::vector<float> sum(10);
  codec->decode_reply(reply, 5, ReplyKind::kExact, sum, {});
  reply[0] = reply[16] = std::byte{8};  // planes 0 and 2 of element 3: 5
  codec->decode_reply(reply, 5, ReplyKind::kExact, sum, {});
  reply[8] = std::byte{8};  // and plane 1: 7
  EXPECT_THAT([&] { codec->decode_reply(reply, 5, ReplyKind::kExact, sum, {}); },
              ThrowsMessage<DecodeError>(HasSubstr("1bit: the reply holds a count of 14")));
}

TEST(OneBitVotes, TheReplyIsTheMajority) {
  const auto codec = make(parse_spec("1bit:threshold=0.5"));
  const std::vector<std::vector<float>> grads{{1, 1, -1, 1}, {1, -1, -1, 1}, {1, -1, -1, -1}, {1, -1, 1, -1}};
  std::vector<std::vector<std::byte>> bytes;
  for (const auto& grad : grads) bytes.push_back(encoded(*codec, grad, {}, {}));
  const std::vector<Payload> payloads(bytes.begin(), bytes.end());
  std::vector<float> answer(4);
  codec->decode_reply(replied(*codec, payloads, 4, ReplyKind::kSame, {}), 4, ReplyKind::kSame, answer, {});
  EXPECT_EQ(answer, (std::vector<float>{4, -4, -4, -4})) << "a tie goes down";
  std::vector<float> residual(4);
  replied(*codec, payloads, 4, ReplyKind::kSame, residual);
  EXPECT_EQ(residual, (std::vector<float>{0, 2, 2, 4})) << "what the majority was not";
}

TEST(OneBitVotes, ServersResidualStaysWithinAllVotes) {
  const auto codec = make(parse_spec("1bit:threshold=0.5"));
  std::vector<float> residual(200);
  for (unsigned round = 0; round < 1000; ++round) {
    std::vector<std::vector<std::byte>> bytes;
    for (unsigned w = 0; w < 3; ++w) bytes.push_back(encoded(*codec, gaussian(200, w), {}, {}));
    const std::vector<Payload> payloads(bytes.begin(), bytes.end());
    replied(*codec, payloads, 200, ReplyKind::kSame, residual);
    for (float kept : residual) ASSERT_LE(std::fabs(kept), 3) << round;
  }
}

TEST(OneBit, ThresholdsAreAWordOrANumberAboveZero) {
  EXPECT_FALSE(make(parse_spec("1bit:threshold=mean"))->has_exact_reply());
  EXPECT_TRUE(make(parse_spec("1bit:threshold=0.5"))->has_exact_reply());
  for (const char* bad : {"0", "-1", "nan", "median"}) {
    EXPECT_THAT([&] { make(parse_spec(std::string("1bit:threshold=") + bad)); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("or the word mean")))
        << bad;
  }
}

TEST(OneBit, ALevelThatNoEncoderWritesIsNamed) {
  const auto codec = make(parse_spec("1bit"));
  auto bad = encoded(*codec, gaussian(kUnitElements + 1, 1), {}, {});
  store(-1.0f, bad.data() + 4);
  std::vector<float> out(kUnitElements + 1);
  EXPECT_THAT([&] { codec->decode(bad, out); },
              ThrowsMessage<DecodeError>(HasSubstr("payload 0 of 1: the scale of unit 1 is -1")));
}

}  // namespace
}  // namespace gradwire::compress
