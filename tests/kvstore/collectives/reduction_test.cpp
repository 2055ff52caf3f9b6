#include "kvstore/collectives/reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename T>
std::vector<T> reduced(const std::vector<std::vector<T>>& parts, DataType type, ReduceOp op) {
  std::vector<std::span<const std::byte>> views;
  for (const auto& part : parts) views.push_back(std::as_bytes(std::span(part)));
  std::vector<T> out(parts[0].size());
  reduce(views, type, op, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(Reduction, FloatsAreAddedInRankOrder) {
  const float big = 1e8F;
  EXPECT_THAT(reduced<float>({{big, 1}, {1, big}, {-big, -big}}, DataType::kFloat32, ReduceOp::kSum),
              ElementsAre((big + 1.0F) - big, (1.0F + big) - big));
  EXPECT_THAT(reduced<double>({{0.1}, {0.2}, {0.3}}, DataType::kFloat64, ReduceOp::kAverage),
              ElementsAre(((0.1 + 0.2) + 0.3) / 3));
  EXPECT_THAT(reduced<float>({{0.1F}, {3}, {7}}, DataType::kFloat32, ReduceOp::kProduct),
              ElementsAre((0.1F * 3) * 7));
}

TEST(Reduction, IntegersWrap) {
  EXPECT_THAT(reduced<std::uint8_t>({{200}, {100}}, DataType::kUint8, ReduceOp::kSum), ElementsAre(44));
  EXPECT_THAT(reduced<std::int8_t>({{-100, 16}, {-100, 16}}, DataType::kInt8, ReduceOp::kSum),
              ElementsAre(56, 32));
  const auto most = std::numeric_limits<std::int64_t>::max();
  const auto least = std::numeric_limits<std::int64_t>::min();
  EXPECT_THAT(reduced<std::int64_t>({{most}, {1}}, DataType::kInt64, ReduceOp::kSum), ElementsAre(least));
  EXPECT_THAT(reduced<std::int32_t>({{-70'000}, {70'000}}, DataType::kInt32, ReduceOp::kProduct),
              ElementsAre(static_cast<std::int32_t>(static_cast<std::uint32_t>(-4'900'000'000LL))));
}

TEST(Reduction, MinAndMaxCompareWhatTheElementsAre) {
  EXPECT_THAT(reduced<std::int8_t>({{-1, 5}, {1, -5}}, DataType::kInt8, ReduceOp::kMin), ElementsAre(-1, -5));
  EXPECT_THAT(reduced<std::uint8_t>({{255}, {1}}, DataType::kUint8, ReduceOp::kMax), ElementsAre(255));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (const float value : reduced<float>({{nan, 1}, {1, nan}, {2, 2}}, DataType::kFloat32, op))
      EXPECT_TRUE(std::isnan(value));
  }
  EXPECT_TRUE(std::signbit(reduced<float>({{-0.0F}, {0.0F}}, DataType::kFloat32, ReduceOp::kMax)[0]));
}

/// Rounds to `bits` of fraction and a least exponent by arithmetic alone, ties to even.
double rounded(double value, int bits, int least_exponent) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), least_exponent);
  return std::ldexp(std::nearbyint(std::ldexp(value, bits - exponent)), exponent - bits);
}

double value_of_half(std::uint16_t half, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (half >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = half & ((1 << fraction_bits) - 1);
  const double sign = half >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction ? std::nan("") : sign * HUGE_VAL;
  const int whole = exponent == 0 ? 0 : 1 << fraction_bits;
  return sign * std::ldexp(whole + fraction, std::max(exponent, 1) - bias - fraction_bits);
}

// Every value of each format goes through unchanged, and sums are rounded once, at the end.
TEST(Reduction, HalvesAreAddedInFloatAndRoundedOnce) {
  struct Format {
    DataType type;
    int exponent_bits;
    double largest;
  };
  for (const auto& [type, exponent_bits, largest] :
       {Format{DataType::kFloat16, 5, 65504}, Format{DataType::kBfloat16, 8, 0x1.FEp127}}) {
    std::vector<std::uint16_t> all(1 << 16);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    const auto same = reduced<std::uint16_t>({all}, type, ReduceOp::kSum);
    std::mt19937 random(7);
    std::vector<std::vector<std::uint16_t>> parts(3, all);
    for (auto& part : parts) std::shuffle(part.begin(), part.end(), random);
    const auto sums = reduced<std::uint16_t>(parts, type, ReduceOp::kSum);
    const int fraction_bits = 15 - exponent_bits;
    const int least_exponent = 2 - (1 << (exponent_bits - 1));
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double value = value_of_half(all[i], exponent_bits);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(value_of_half(same[i], exponent_bits)));
      } else {
        EXPECT_EQ(same[i], all[i]);
      }
      float sum = 0;
      for (const auto& part : parts) sum += static_cast<float>(value_of_half(part[i], exponent_bits));
      double expected = rounded(sum, fraction_bits, least_exponent);
      if (std::fabs(expected) > largest) expected = std::copysign(HUGE_VAL, expected);
      const double given = value_of_half(sums[i], exponent_bits);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(given));
      } else {
        ASSERT_EQ(given, expected) << static_cast<int>(type) << " sum " << sum;
      }
    }
  }
}

TEST(Reduction, OutMayBeAnyOfTheParts) {
  for (std::size_t at = 0; at < 3; ++at) {
    std::vector<std::vector<std::int32_t>> parts(3, std::vector<std::int32_t>(5000));
    for (std::size_t p = 0; p < 3; ++p) {
      for (std::size_t i = 0; i < 5000; ++i) parts[p][i] = static_cast<std::int32_t>(i * (p + 1));
    }
    std::vector<std::span<const std::byte>> views;
    for (const auto& part : parts) views.push_back(std::as_bytes(std::span(part)));
    reduce(views, DataType::kInt32, ReduceOp::kSum, std::as_writable_bytes(std::span(parts[at])));
    for (std::size_t i = 0; i < 5000; ++i) ASSERT_EQ(parts[at][i], static_cast<std::int32_t>(6 * i));
  }
}

TEST(Reduction, NamesAreReadAndWritten) {
  for (const auto op :
       {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct})
    EXPECT_EQ(parse_reduce_op(name_of(op)), op);
  for (int i = 0; i < 8; ++i) {
    const auto type = static_cast<DataType>(i);
    EXPECT_EQ(parse_data_type(name_of(type)), type);
  }
  const auto text_of = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(text_of([] { parse_reduce_op("mean"); }), HasSubstr("sum, average, min, max, product"));
  EXPECT_THAT(text_of([] { parse_data_type("complex64"); }), HasSubstr("float32, float64"));
  EXPECT_THAT(text_of([] { require_defined(ReduceOp::kAverage, DataType::kInt64); }),
              HasSubstr("take the sum and divide"));
}

}  // namespace
}  // namespace gradwire::kvstore
