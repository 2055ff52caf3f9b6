// Codes with a scale per block: the rule against the definition of the number formats, and every SIMD target
// against the scalar specification.
#include "compress/block/block_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/compress/rough_values.h"
#include "tests/compress/simd_targets.h"

namespace gradwire::compress::block {
namespace {

constexpr Code kCodes[] = {Code::kInt8, Code::kInt4, Code::kE4m3, Code::kE5m2, Code::kNf2, Code::kNf4};
constexpr Code kIntegers[] = {Code::kInt8, Code::kInt4};
constexpr std::size_t kGuard = 64;  // bytes behind an output that must stay

/// 0 to 257 elements, and many.
std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t elements = 0; elements <= 257; ++elements) all.push_back(elements);
  all.insert(all.end(), {4095, 4096, 4099, 65537});
  return all;
}

struct Blocks {
  std::vector<std::byte> scales;
  std::vector<std::byte> codes;

  Blocks(Code code, std::size_t block, std::size_t elements)
      : scales(scale_count(elements, block) * sizeof(float) + kGuard, std::byte{0xee}),
        codes(code_bytes(code, elements) + kGuard, std::byte{0xee}) {}
  bool operator==(const Blocks&) const = default;
};

TEST(BlockScalar, EveryIntegerIsTheCodeOfItsValue) {
  for (Code code : kIntegers) {
    const auto most = static_cast<int>(largest(code));
    for (int value = -most; value <= most; ++value) {
      const std::uint8_t bits = code_of(code, static_cast<float>(value));
      EXPECT_LT(bits, 1u << code_bits(code));
      EXPECT_EQ(value_of(code, bits), static_cast<float>(value));
    }
  }
}

/// The value of an 8-bit float, from the definition of the format.
double value_of_float8(unsigned bits, int fraction) {
  const int bias = (1 << (6 - fraction)) - 1;
  const int exponent = static_cast<int>(bits & 0x7f) >> fraction;
  const double mantissa = bits & ((1u << fraction) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - fraction)
                                         : std::ldexp(mantissa + (1 << fraction), exponent - bias - fraction);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

TEST(BlockScalar, EveryFloat8IsTheCodeOfItsValueAndNeighboursRoundToNearestEven) {
  for (Code code : {Code::kE4m3, Code::kE5m2}) {
    const int fraction = code == Code::kE4m3 ? 3 : 2;
    const unsigned most = code == Code::kE4m3 ? 0x7e : 0x7b;
    EXPECT_EQ(value_of_float8(most, fraction), largest(code));
    for (unsigned bits = 0; bits <= most; ++bits) {
      const double value = value_of_float8(bits, fraction);
      for (unsigned sign : {0u, 0x80u}) {
        const auto signed_bits = static_cast<std::uint8_t>(bits | sign);
        EXPECT_EQ(value_of(code, signed_bits), sign == 0 ? value : -value);
        EXPECT_EQ(code_of(code, static_cast<float>(sign == 0 ? value : -value)), signed_bits);
      }
      if (bits == most) break;
      const double between = (value + value_of_float8(bits + 1, fraction)) / 2;
      const auto tie = static_cast<float>(between);
      EXPECT_EQ(code_of(code, std::nextafter(tie, 0.0f)), bits);
      EXPECT_EQ(code_of(code, tie), bits + bits % 2);
      EXPECT_EQ(code_of(code, std::nextafter(tie, 1e30f)), bits + 1);
    }
    EXPECT_EQ(code_of(code, 1e30f), most) << "what is beyond the largest value becomes it";
  }
}

TEST(BlockScalar, ScaledElementsRoundToNearestEven) {
  for (Code code : kIntegers) {
    for (float x = -largest(code); x <= largest(code); x += 1.0f / 64) {
      EXPECT_EQ(value_of(code, code_of(code, x)), std::nearbyint(x)) << x;
    }
  }
}

TEST(BlockScalar, ScalesAreZeroOrNormalAndLeaveTheLargestCodeFinite) {
  for (Code code : kCodes) {
    if (code == Code::kNf2 || code == Code::kNf4)
      continue;  // theirs are rounded, and the largest code takes more
    for (float most : {0.0f, 1e-45f, 1e-37f, 1e-30f, 1.0f, 3e38f, std::numeric_limits<float>::max()}) {
      const float scale = scale_of(code, most);
      EXPECT_TRUE(scale == 0 || scale >= std::numeric_limits<float>::min()) << most;
      EXPECT_TRUE(std::isfinite(scale * largest(code)) && std::isfinite(inverse_of(scale))) << most;
      EXPECT_LE(most * inverse_of(scale), largest(code) * 1.000001f) << most;
    }
  }
}

TEST(BlockKernels, EncodeEqualsScalar) {
  on_every_target([] {
    for (Code code : kCodes) {
      for (std::size_t block : {32, 128, 4096}) {
        for (std::size_t elements : lengths()) {
          for (unsigned rarity : {20u, 4000u}) {
            const auto grad = rough_values(elements, 1, rarity);
            for (bool with_residual : {false, true}) {
              auto expected_residual = rough_values(elements, 2, rarity);
              auto residual = expected_residual;
              Blocks expected(code, block, elements);
              Blocks out = expected;
              const bool flag =
                  encode_scalar(code, block, grad.data(), with_residual ? expected_residual.data() : nullptr,
                                elements, expected.scales.data(), expected.codes.data());
              EXPECT_EQ(encode(code, block, grad.data(), with_residual ? residual.data() : nullptr, elements,
                               out.scales.data(), out.codes.data()),
                        flag);
              ASSERT_EQ(out, expected) << elements << " in blocks of " << block;
              ASSERT_EQ(bits(residual), bits(expected_residual)) << elements << " in blocks of " << block;
            }
          }
        }
      }
    }
  });
}

TEST(BlockKernels, DitherEqualsScalar) {
  on_every_target([] {
    for (Code code : kIntegers) {
      for (std::size_t block : {64, 512, 4096}) {
        for (std::size_t elements : lengths()) {
          for (unsigned rarity : {50u, 10000u}) {
            const Dither dither{7, {0xffffffff, 3, 0x1ffffffff, std::uint64_t{11} * kUnitElements}};
            const auto grad = rough_values(elements, 1, rarity);
            auto expected_residual = rough_values(elements, 2, rarity);
            auto residual = expected_residual;
            Blocks expected(code, block, elements);
            Blocks out = expected;
            const bool flag = encode_scalar(code, block, grad.data(), expected_residual.data(), elements,
                                            expected.scales.data(), expected.codes.data(), &dither);
            EXPECT_EQ(encode(code, block, grad.data(), residual.data(), elements, out.scales.data(),
                             out.codes.data(), &dither),
                      flag);
            ASSERT_EQ(out, expected) << elements << " in blocks of " << block;
            ASSERT_EQ(bits(residual), bits(expected_residual)) << elements << " in blocks of " << block;
          }
        }
      }
    }
  });
}

TEST(BlockKernels, ABfloat16ResidualIsWidenedBeforeAndRoundedAfter) {
  on_every_target([] {
    for (Code code : kCodes) {
      for (std::size_t block : {64, 512, 4096}) {
        for (std::size_t elements : {1, 63, 64, 65, 129, 4099, 65537}) {
          for (const bool dithered : {false, true}) {
            if (dithered && !is_integer(code)) continue;
            const Dither dither{7, {1, 3, 2, std::uint64_t{11} * kUnitElements}};
            const Dither* const drawn = dithered ? &dither : nullptr;
            const auto grad = rough_values(elements, 1, 4000);
            std::vector<std::byte> residual(2 * elements + 1, std::byte{0xee});
            std::vector<float> widened = rough_values(elements, 2, 20);
            for (std::size_t i = 0; i < elements; ++i) {
              store(dense::bf16_from_float(widened[i]), residual.data() + 2 * i);
              widened[i] = dense::float_from_bf16(dense::bf16_from_float(widened[i]));
            }
            Blocks expected(code, block, elements);
            Blocks out = expected;
            const bool flag = encode_scalar(code, block, grad.data(), widened.data(), elements,
                                            expected.scales.data(), expected.codes.data(), drawn);
            EXPECT_EQ(encode_bf16(code, block, grad.data(), residual.data(), elements, out.scales.data(),
                                  out.codes.data(), drawn),
                      flag);
            ASSERT_EQ(out, expected) << elements << " in blocks of " << block;
            for (std::size_t i = 0; i < elements; ++i) {
              ASSERT_EQ(load<std::uint16_t>(residual.data() + 2 * i), dense::bf16_from_float(widened[i]))
                  << i << " of " << elements << " in blocks of " << block;
            }
            ASSERT_EQ(residual.back(), std::byte{0xee});
          }
        }
      }
    }
  });
}

TEST(BlockKernels, DecodeEqualsScalarForAnyBytes) {
  on_every_target([] {
    for (Code code : kCodes) {
      for (std::size_t block : {32, 128, 4096}) {
        for (std::size_t elements : lengths()) {
          const auto scales = random_bytes(scale_count(elements, block) * sizeof(float), 3);
          const auto codes = random_bytes(code_bytes(code, elements), 4);
          for (bool add : {false, true}) {
            auto expected = rough_values(elements + 1, 5, 50);
            auto out = expected;
            decode_scalar(code, block, scales.data(), codes.data(), elements, add, expected.data());
            decode(code, block, scales.data(), codes.data(), elements, add, out.data());
            ASSERT_EQ(bits(out), bits(expected)) << elements << " in blocks of " << block;
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace gradwire::compress::block
