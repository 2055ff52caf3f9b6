// Conversions of runs to 16-bit floats and back, on every SIMD target: what no codec sends, NaN and infinity,
// is kept.
#include "compress/dense/halves.h"

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

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::uint16_t> rounded(Format format, const std::vector<float>& values) {
  std::vector<std::uint16_t> halves(values.size());
  halves_from_floats(format, values, std::as_writable_bytes(std::span(halves)));
  return halves;
}

std::vector<float> widened(Format format, const std::vector<std::uint16_t>& halves) {
  std::vector<float> values(halves.size());
  floats_from_halves(format, std::as_bytes(std::span(halves)), values);
  return values;
}

TEST(Halves, EveryPatternIsWidenedToItsValueAndRoundedBack) {
  std::vector<std::uint16_t> patterns(0x10000);
  for (std::uint32_t p = 0; p < patterns.size(); ++p) patterns[p] = static_cast<std::uint16_t>(p);
  on_every_target([&] {
    for (const Format format : {Format::kF16, Format::kBf16}) {
      const auto values = widened(format, patterns);
      const auto back = rounded(format, values);
      for (std::uint32_t p = 0; p < patterns.size(); ++p) {
        const float expected =
            format == Format::kF16 ? float_from_f16(patterns[p]) : float_from_bf16(patterns[p]);
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(values[p])) << p;
          EXPECT_TRUE(std::isnan(widened(format, {back[p]})[0])) << p;
        } else {
          EXPECT_EQ(std::bit_cast<std::uint32_t>(values[p]), std::bit_cast<std::uint32_t>(expected)) << p;
          EXPECT_EQ(back[p], patterns[p]);
        }
      }
    }
  });
}

TEST(Halves, WhatIsBeyondBecomesAnInfinityAndTheRestOfItsRunIsRounded) {
  on_every_target([&] {
    EXPECT_EQ(
        rounded(Format::kF16, {65519, 65520, -65520, kInfinity, -kInfinity, kNan, 0x1p-25F, 0x1.8p-25F}),
        (std::vector<std::uint16_t>{0x7bff, 0x7c00, 0xfc00, 0x7c00, 0xfc00, 0x7e00, 0, 1}));
    const float largest = std::numeric_limits<float>::max();
    EXPECT_EQ(rounded(Format::kBf16, {largest, -largest, kInfinity, kNan, 1 + 0x1p-8F, 1 + 0x1.8p-7F}),
              (std::vector<std::uint16_t>{0x7f80, 0xff80, 0x7f80, 0x7fc0, 0x3f80, 0x3f82}));
  });
}

TEST(Halves, RunsAreRoundedAsTheirElementsAre) {
  std::mt19937 random(5);
  std::vector<float> values(20'011);
  for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  on_every_target([&] {
    const auto f16 = rounded(Format::kF16, values), bf16 = rounded(Format::kBf16, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(f16[i], ieee_f16_from_float(values[i])) << values[i];
      ASSERT_EQ(bf16[i], ieee_bf16_from_float(values[i])) << values[i];
    }
  });
}

}  // namespace
}  // namespace gradwire::compress::dense
