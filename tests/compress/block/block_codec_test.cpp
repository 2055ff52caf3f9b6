// What codes with a scale per block promise beyond the contract: how far a decoded element may be off.
#include "compress/block/block_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compress/block/normal_float.h"
#include "compress/payload/little_endian.h"
#include "tests/compress/codec_cases.h"

namespace gradwire::compress {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct Format {
  const char* spec;
  std::size_t block;
  float largest;  ///< value of the largest code
};

constexpr Format kFormats[] = {
    {"int8", 256, 127}, {"int8:block=32", 32, 127}, {"int4", 128, 7}, {"int4:block=4096", 4096, 7}};
constexpr const char* kSpecs[] = {"int8", "int4", "nf2", "nf4", "fp8", "fp8:format=e5m2"};

TEST(BlockCodec, AnElementIsOffByHalfAStepAtMost) {
  for (const Format& format : kFormats) {
    const auto codec = make(parse_spec(format.spec));
    for (std::size_t elements = 1; elements <= 257; ++elements) {
      const auto grad = gaussian(elements, static_cast<unsigned>(elements));
      std::vector<float> out(elements);
      codec->decode(encoded(*codec, grad, {}, {}), out);
      for (std::size_t i = 0; i < elements; ++i) {
        float most = 0;
        for (std::size_t j = i / format.block * format.block;
             j < elements && j / format.block == i / format.block; ++j) {
          most = std::max(most, std::fabs(grad[j]));
        }
        ASSERT_LE(std::fabs(grad[i] - out[i]), most / format.largest / 2 * 1.00001f)
            << format.spec << " " << i;
      }
    }
  }
}

TEST(BlockCodec, AnEightBitFloatIsOffByHalfItsLastBitAtMost) {
  for (const auto& [spec, relative, least] : {std::tuple("fp8", 0x1p-4f, 0x1p-10f / 448),
                                              std::tuple("fp8:format=e5m2", 0x1p-3f, 0x1p-17f / 57344)}) {
    const auto codec = make(parse_spec(spec));
    for (std::size_t elements = 1; elements <= 256; ++elements) {
      const auto grad = gaussian(elements, static_cast<unsigned>(elements));
      std::vector<float> out(elements);
      codec->decode(encoded(*codec, grad, {}, {}), out);
      float most = 0;
      for (float x : grad) most = std::max(most, std::fabs(x));
      for (std::size_t i = 0; i < elements; ++i) {
        const float allowed = std::max(relative * std::fabs(grad[i]), least * most);
        ASSERT_LE(std::fabs(grad[i] - out[i]), allowed * 1.00001f) << spec << " " << i;
      }
    }
  }
}

/// What one round of a codec without a residual delivers.
std::vector<float> delivered(const Codec& codec, std::span<const float> grad) {
  std::vector<float> out(grad.size());
  codec.decode(encoded(codec, grad, {}, {}), out);
  return out;
}

TEST(Nf2, LevelsAreOneAndFourTimesTheScaleThatFits) {
  const auto codec = make(parse_spec("nf2"));
  EXPECT_THAT(delivered(*codec, std::vector<float>{8, -3, 2, -1, 2}), ElementsAre(8, -2, 2, -2, 2));
  EXPECT_THAT(delivered(*codec, std::vector<float>{3, -3, -3, 3}), ElementsAre(3, -3, -3, 3));
  EXPECT_THAT(delivered(*codec, std::vector<float>{0, 0, 0}), ElementsAre(0, 0, 0));
}

/// The squared error of Gaussian numbers, of their squares.
double error_of_a_gaussian(const char* spec) {
  const auto grad = gaussian(100'000, 1);
  const auto out = delivered(*make(parse_spec(spec)), grad);
  double error = 0, power = 0;
  for (std::size_t i = 0; i < grad.size(); ++i) {
    error += (out[i] - grad[i]) * (out[i] - grad[i]);
    power += grad[i] * grad[i];
  }
  return error / power;
}

TEST(NormalFloat, AGaussianIsOffByLittleMoreThanTheBestLevelsAre) {
  EXPECT_LT(error_of_a_gaussian("nf2"), 0.13) << "Max 1960, table I: 0.1175";
  EXPECT_LT(error_of_a_gaussian("nf4"), 0.0095) << "Max 1960, table I, one scale for all: 0.0095";
  EXPECT_GT(error_of_a_gaussian("int4"), 0.013);
}

TEST(Nf4, ACodeIsTheNearestLevel) {
  std::vector<int> sent;
  for (int eight_bits = -127; eight_bits <= 127; ++eight_bits) {
    const int level = block::nf4_level_of(block::nf4_code_of(static_cast<std::int8_t>(eight_bits)));
    for (const int other : block::kNf4Levels) {
      const std::pair off(std::abs(eight_bits - level), -level);
      EXPECT_LE(off, std::pair(std::abs(eight_bits - other), -other)) << "nearest, of two the upper one";
    }
    if (sent.empty() || sent.back() != level) sent.push_back(level);
  }
  EXPECT_EQ(sent.size(), block::kNf4Levels.size());
  EXPECT_EQ(block::nf4_code_of(0), 0);
}

TEST(Nf4, AZeroSendsZeroAndALargeElementLeavesWithinTwoRounds) {
  const auto codec = make(parse_spec("nf4"));
  EXPECT_EQ(delivered(*codec, std::vector<float>(128)), std::vector<float>(128));
  std::vector<float> grad(128);
  grad[7] = -127;
  std::vector<float> residual(128);
  for (const float left : {9.0f, 1.0f}) {
    encoded(*codec, grad, residual, {});
    grad[7] = 0;
    EXPECT_LE(std::fabs(residual[7]), left);
    EXPECT_NE(residual[7], 0);
    EXPECT_EQ(std::count(residual.begin(), residual.end(), 0.0f), 127);
  }
}

TEST(Nf2, AQuarterOfOneLargeElementLeavesInARound) {
  const auto codec = make(parse_spec("nf2"));
  std::vector<float> grad(128);
  grad[7] = 16;
  std::vector<float> residual(128);
  for (const float left : {12.0f, 9.0f}) {
    encoded(*codec, grad, residual, {});
    grad[7] = 0;
    EXPECT_LE(residual[7], left);
  }
}

TEST(Nf2, AGradientThatIsNotFiniteCountsAsZero) {
  const auto codec = make(parse_spec("nf2"));
  std::vector<float> grad{std::numeric_limits<float>::infinity(), 4, -4, std::nanf("")};
  std::vector<float> residual{2, 0, 0, 0};
  std::vector<float> same{2, 4, -4, 0};
  std::vector<float> kept(4);
  bool nonfinite = false;
  const auto payload = encoded(*codec, grad, residual, {}, &nonfinite);
  EXPECT_TRUE(nonfinite);
  EXPECT_EQ(payload, encoded(*codec, same, kept, {}));
  EXPECT_EQ(residual, kept);
}

TEST(BlockCodec, ABlockHasItsOwnScale) {
  const auto codec = make(parse_spec("int4:block=32"));
  std::vector<float> grad(64, 7e-3f);
  std::fill(grad.begin() + 32, grad.end(), 7e3f);
  std::vector<float> out(64);
  codec->decode(encoded(*codec, grad, {}, {}), out);
  EXPECT_FLOAT_EQ(out[0], 7e-3f);
  EXPECT_FLOAT_EQ(out[63], 7e3f);
}

TEST(BlockCodec, TheLargestAndTheSmallestFloatsStayFinite) {
  for (const char* spec : kSpecs) {
    const auto codec = make(parse_spec(spec));
    const float most = std::numeric_limits<float>::max();
    const std::vector<float> grad{most, -most, most / 3, 1, 1e-45f};
    std::vector<float> residual(grad.size());
    std::vector<float> out(grad.size());
    bool nonfinite = true;
    codec->decode(encoded(*codec, grad, residual, {}, &nonfinite), out);
    EXPECT_FALSE(nonfinite);
    for (std::size_t i = 0; i < grad.size(); ++i) {
      ASSERT_TRUE(std::isfinite(out[i]) && std::isfinite(residual[i])) << spec << " " << i;
    }
    const std::vector<float> tiny(3, 1e-40f);
    residual.assign(3, 0);
    out.resize(3);
    codec->decode(encoded(*codec, tiny, residual, {}), out);
    EXPECT_EQ(out, std::vector<float>(3));
    EXPECT_EQ(residual, tiny) << "what no normal scale can send is kept";
  }
}

TEST(BlockCodec, AScaleThatNoEncoderWritesIsNamed) {
  const auto codec = make(parse_spec("int8:block=32"));
  const auto good = encoded(*codec, gaussian(100, 1), {}, {});
  std::vector<float> out(100);
  for (float scale : {-1.0f, -0.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    auto bad = good;
    store(scale, bad.data() + 8);
    const Payload payloads[] = {good, bad};
    EXPECT_THAT([&] { codec->decode_sum(payloads, out); },
                ThrowsMessage<DecodeError>(HasSubstr("int8: payload 1 of 2: the scale of block 2 is")));
    EXPECT_THROW(codec->validate(bad, 100), DecodeError);
    EXPECT_THROW(codec->decode_reply(bad, 2, ReplyKind::kSame, out, {}), DecodeError);
  }
}

TEST(NormalFloat, AScaleThatNoEncoderWritesIsNamed) {
  for (const char* spec : {"nf2:block=32", "nf4:block=32"}) {
    const auto codec = make(parse_spec(spec));
    auto bad = encoded(*codec, gaussian(100, 1), {}, {});
    for (const std::uint16_t scale : {0xbf80, 0x8000, 0x7f80, 0x7fc0}) {  // -1, -0, infinity, NaN
      store(scale, bad.data() + 4);
      EXPECT_THAT([&] { codec->validate(bad, 100); },
                  ThrowsMessage<DecodeError>(HasSubstr("the scale of block 2 is")));
    }
  }
}

TEST(BlockCodec, BlocksAreRefusedByName) {
  for (const char* block : {"0", "16", "33", "8192", "-32", "32.5", "many", "nan"}) {
    EXPECT_THAT([&] { make(parse_spec(std::string("int4:block=") + block)); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("is not a power of two from 32 to 4096")))
        << block;
  }
  EXPECT_THAT([] { make(parse_spec("fp8:format=e3m4")); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("valid: e4m3, e5m2")));
  EXPECT_THROW(from_wire(WireId::kFp8, {256, 2, 0, 0}), DecodeError);
  EXPECT_THROW(from_wire(WireId::kInt8, {0, 0, 0, 0}), DecodeError);
  EXPECT_THROW(from_wire(WireId::kInt8, {48, 0, 0, 0}), DecodeError);
  EXPECT_THROW(from_wire(WireId::kInt4, {1u << 31, 0, 0, 0}), DecodeError);
}

}  // namespace
}  // namespace gradwire::compress
