// Against sums in double, which are exact, rounded once by their definition.
#include "transport/half_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace gradwire::transport {
namespace {

struct Format {
  const char* name;
  int mantissa_bits;
  int exponent_bits;
  void (*add)(const std::uint16_t*, std::uint16_t*, std::size_t) noexcept;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

double value_of(const Format& format, std::uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = (bits & 0x7FFF) >> format.mantissa_bits;
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  if (exponent == (1 << format.exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << format.mantissa_bits);
  return sign * std::ldexp(whole, std::max(exponent, 1) - format.bias() - format.mantissa_bits);
}

/// Nearest to value, ties to even, among the numbers of the format with its exponent range open above.
double rounded(const Format& format, double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), 1 - format.bias());
  const double unit = std::ldexp(1.0, exponent - format.mantissa_bits);
  const double nearest = std::nearbyint(value / unit) * unit;
  const double limit = std::ldexp(1.0, format.bias() + 1);
  return std::abs(nearest) >= limit ? std::copysign(std::numeric_limits<double>::infinity(), value) : nearest;
}

class HalfSums : public ::testing::TestWithParam<Format> {};

void expect_sum(const Format& format, std::uint16_t left, std::uint16_t right, std::uint16_t sum) {
  const double expected = rounded(format, value_of(format, left) + value_of(format, right));
  const double given = value_of(format, sum);
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(given)) << left << " + " << right << " = " << sum;
  } else {
    ASSERT_EQ(given, expected) << left << " + " << right << " = " << sum;
    ASSERT_EQ(std::signbit(given), std::signbit(expected)) << left << " + " << right << " = " << sum;
  }
}

// Every number meets a number of each kind: zeros, subnormals, both ends of the range, infinity, NaN, and
// some between, in both directions.
TEST_P(HalfSums, AreThoseOfExactAdditionRoundedOnce) {
  const Format& format = GetParam();
  const auto infinity = static_cast<std::uint16_t>(((1 << format.exponent_bits) - 1) << format.mantissa_bits);
  const auto smallest_normal = static_cast<std::uint16_t>(1 << format.mantissa_bits);
  std::vector<std::uint16_t> partners = {0,
                                         1,
                                         3,
                                         static_cast<std::uint16_t>(smallest_normal - 1),
                                         smallest_normal,
                                         static_cast<std::uint16_t>(infinity - 1),
                                         infinity,
                                         static_cast<std::uint16_t>(infinity + 1),
                                         0x1234,
                                         0x3C01,
                                         0x3F81,
                                         0x4F55};
  for (std::size_t i = 0, kinds = partners.size(); i < kinds; ++i) partners.push_back(partners[i] | 0x8000);
  std::vector<std::uint16_t> all(1 << 16);
  for (const std::uint16_t partner : partners) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    const std::vector<std::uint16_t> others(all.size(), partner);
    format.add(others.data(), all.data(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i)
      expect_sum(format, static_cast<std::uint16_t>(i), partner, all[i]);
  }
}

TEST_P(HalfSums, EveryLengthIsSummedToItsEndAndNoFurther) {
  const Format& format = GetParam();
  for (std::size_t count = 0; count < 40; ++count) {
    std::vector<std::uint16_t> from(count + 1, 0x3F80), to(count + 1, 0x3F80);  // 1 as bf16, 1.875 as fp16
    format.add(from.data(), to.data(), count);
    for (std::size_t i = 0; i < count; ++i) expect_sum(format, 0x3F80, 0x3F80, to[i]);
    EXPECT_EQ(to[count], 0x3F80);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, HalfSums,
                         ::testing::Values(Format{"Float16", 10, 5, add_float16},
                                           Format{"Float16Portably", 10, 5, add_float16_portably},
                                           Format{"Bfloat16", 7, 8, add_bfloat16}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gradwire::transport
