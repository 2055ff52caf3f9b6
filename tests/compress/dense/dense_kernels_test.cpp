// fp16 and bf16: rounding against an independent model, and every SIMD target against the scalar
// specification.
#include "compress/dense/dense_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/compress/simd_targets.h"

namespace gradwire::compress::dense {
namespace {

constexpr Format kFormats[] = {Format::kF32, Format::kF32Finite, Format::kF16, Format::kBf16};

/// The value of a sixteen-bit pattern with `fraction` fraction bits, from the definition of the format.
double value_of(std::uint16_t pattern, int fraction) {
  const int exponent_bits = 15 - fraction;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (pattern & 0x7fff) >> fraction;
  const double mantissa = pattern & ((1 << fraction) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - fraction)
                                         : std::ldexp(mantissa + (1 << fraction), exponent - bias - fraction);
  return pattern & 0x8000 ? -magnitude : magnitude;
}

/// Checks that `pattern` is the pattern nearest to x, the even one of two equally near, the largest beyond
/// range.
void expect_nearest(float x, std::uint16_t pattern, int fraction, std::uint16_t largest) {
  ASSERT_EQ(pattern >> 15, std::signbit(x)) << x;
  const std::uint16_t magnitude = pattern & 0x7fff;
  const double distance = std::fabs(std::fabs(double{x}) - value_of(magnitude, fraction));
  ASSERT_LE(magnitude, largest) << x;
  if (magnitude > 0) {
    const double below =
        std::fabs(std::fabs(double{x}) - value_of(static_cast<std::uint16_t>(magnitude - 1), fraction));
    ASSERT_TRUE(distance < below || (distance == below && magnitude % 2 == 0)) << x;
  }
  if (magnitude < largest) {
    const double above =
        std::fabs(std::fabs(double{x}) - value_of(static_cast<std::uint16_t>(magnitude + 1), fraction));
    ASSERT_TRUE(distance < above || (distance == above && magnitude % 2 == 0)) << x;
  }
}

TEST(DenseScalar, EverySixteenBitPatternDecodesToItsValueAndBack) {
  for (std::uint32_t p = 0; p < 0x10000; ++p) {
    const auto pattern = static_cast<std::uint16_t>(p);
    if ((pattern & 0x7c00) != 0x7c00) {
      EXPECT_EQ(double{float_from_f16(pattern)}, value_of(pattern, 10));
      EXPECT_EQ(f16_from_float(float_from_f16(pattern)), pattern);
    }
    if ((pattern & 0x7f80) != 0x7f80) {
      EXPECT_EQ(double{float_from_bf16(pattern)}, value_of(pattern, 7));
      EXPECT_EQ(bf16_from_float(float_from_bf16(pattern)), pattern);
    }
  }
  EXPECT_EQ(float_from_f16(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(float_from_f16(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(float_from_f16(0x7e00)));
}

TEST(DenseScalar, RoundsToNearestEven) {
  std::mt19937 random(9);
  for (int i = 0; i < 300000; ++i) {
    // Ties are rare in random bits, so half of the values get a zero tail.
    const std::uint32_t mask = i % 2 == 0 ? 0xffffffff : i % 4 == 1 ? 0xfffff000 : 0xffff8000;
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()) & mask);
    if (!std::isfinite(x)) continue;
    expect_nearest(x, bf16_from_float(x), 7, 0x7f7f);
    const float small = std::ldexp(x, -std::ilogb(x == 0 ? 1.0f : x) + static_cast<int>(random() % 44) - 26);
    if (std::isfinite(small)) expect_nearest(small, f16_from_float(small), 10, 0x7bff);
  }
  EXPECT_EQ(f16_from_float(65520), 0x7bff);
  EXPECT_EQ(f16_from_float(-3e38f), 0xfbff);
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f7f);
}

std::vector<float> values(std::size_t elements, unsigned seed, bool only_finite) {
  std::mt19937 random(seed);
  std::vector<float> all(elements);
  for (float& value : all) {
    do {
      const auto bits = static_cast<std::uint32_t>(random());
      // Half of them in binary16's range.
      value = std::bit_cast<float>(random() % 2 == 0 ? bits : (bits & 0x8fffffff) | 0x30000000);
    } while (only_finite && !std::isfinite(value));
  }
  return all;
}

std::vector<std::uint32_t> bits(const std::vector<float>& floats) {
  std::vector<std::uint32_t> all;
  for (float f : floats) all.push_back(std::isnan(f) ? 0x7fc00000 : std::bit_cast<std::uint32_t>(f));
  return all;
}

TEST(DenseKernels, EqualScalar) {
  on_every_target([] {
    for (Format format : kFormats) {
      for (std::size_t elements : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 4099, 65537}) {
        for (bool only_finite : {false, true}) {
          const auto grad = values(elements, 1, only_finite);
          for (bool with_residual : {false, true}) {
            auto expected_residual = values(elements, 2, only_finite);
            auto residual = expected_residual;
            std::vector<std::byte> expected(elements * bytes_per_element(format) + 1, std::byte{0xee});
            auto out = expected;
            EXPECT_EQ(
                encode(format, grad.data(), with_residual ? residual.data() : nullptr, elements, out.data()),
                encode_scalar(format, grad.data(), with_residual ? expected_residual.data() : nullptr,
                              elements, expected.data()));
            if (format != Format::kF32 ||
                only_finite) {  // which NaN an addition keeps is the processor's choice
              ASSERT_EQ(out, expected) << elements;
            }
            ASSERT_EQ(bits(residual), bits(expected_residual)) << elements;
          }
        }
      }
    }
  });
}

/// In bfloat16.
std::vector<std::byte> rounded(const std::vector<float>& floats) {
  std::vector<std::byte> all(2 * floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i) store(bf16_from_float(floats[i]), all.data() + 2 * i);
  return all;
}

TEST(DenseKernels, ABfloat16ResidualIsWidenedBeforeAndRoundedAfter) {
  on_every_target([] {
    for (Format format : {Format::kF16, Format::kBf16, Format::kF32Finite}) {
      for (std::size_t elements : {1, 3, 15, 16, 17, 33, 4099}) {
        for (bool only_finite : {false, true}) {
          const auto grad = values(elements, 1, only_finite);
          auto residual = rounded(values(elements, 2, only_finite));
          std::vector<float> widened(elements);
          for (std::size_t i = 0; i < elements; ++i)
            widened[i] = float_from_bf16(load<std::uint16_t>(residual.data() + 2 * i));
          residual.resize(2 * elements + 1, std::byte{0xee});
          std::vector<std::byte> expected(elements * bytes_per_element(format) + 1, std::byte{0xee});
          auto out = expected;
          const bool flag = encode_scalar(format, grad.data(), widened.data(), elements, expected.data());
          auto expected_residual = rounded(widened);
          expected_residual.push_back(std::byte{0xee});
          EXPECT_EQ(encode_bf16(format, grad.data(), residual.data(), elements, out.data()), flag);
          ASSERT_EQ(out, expected) << elements;
          ASSERT_EQ(residual, expected_residual) << elements;
        }
      }
    }
  });
}

std::vector<std::byte> random_bytes(std::size_t size) {
  std::mt19937 random(5);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(DenseKernels, DecodeEqualsScalarWhereverTheOutputBegins) {
  constexpr std::size_t kLargest = 65536 + 40;  // around the cache from 65536 on
  const auto payload = random_bytes(kLargest * 4);
  on_every_target([&] {
    for (const Format format : kFormats) {
      for (const float scale : {1.0f, 0.5f, 1.0f / 3}) {
        for (const std::size_t elements : {1ul, 7ul, 16ul, 33ul, 65535ul, 65536ul, kLargest}) {
          for (const std::size_t begin : {0, 1, 4, 15}) {
            std::vector<float> expected(elements + 16, 7), out(elements + 16, 7);
            decode_scalar(format, payload.data(), elements, scale, expected.data() + begin);
            decode(format, payload.data(), elements, scale, out.data() + begin);
            ASSERT_EQ(bits(out), bits(expected)) << elements << " at " << begin;
          }
        }
      }
    }
  });
}

TEST(DenseKernels, DecodeByOneKeepsEveryBit) {
  const auto payload = random_bytes(70000 * 4);  // signalling NaNs among them
  on_every_target([&] {
    std::vector<float> out(70000);
    decode(Format::kF32, payload.data(), out.size(), 1, out.data());
    EXPECT_EQ(std::memcmp(out.data(), payload.data(), payload.size()), 0);
  });
}

TEST(DenseKernels, SumsAreInRankOrderAndEqualScalar) {
  on_every_target([] {
    std::mt19937 random(4);
    for (Format format : kFormats) {
      for (std::size_t elements : {1, 7, 16, 33, 4099}) {
        for (std::size_t ways : {1, 2, 3, 8}) {
          constexpr std::size_t kOffset = 6;
          std::vector<std::vector<std::byte>> bytes(ways);
          for (auto& payload : bytes) {
            for (std::size_t i = 0; i < kOffset + elements * bytes_per_element(format); ++i) {
              payload.push_back(static_cast<std::byte>(random() & 0xff));
            }
          }
          const std::vector<Payload> payloads(bytes.begin(), bytes.end());
          std::vector<float> expected(elements + 1, 7);
          std::vector<float> out(elements + 1, 7);
          EXPECT_EQ(sum(format, payloads, kOffset, elements, out.data()),
                    sum_scalar(format, payloads, kOffset, elements, expected.data()));
          ASSERT_EQ(bits(out), bits(expected));
        }
      }
    }
  });
}

}  // namespace
}  // namespace gradwire::compress::dense
