// Every SIMD target gives the bytes of the scalar specification.
#include "compress/two_bit/two_bit_kernels.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/compress/rough_values.h"
#include "tests/compress/simd_targets.h"

namespace gradwire::compress::two_bit {
namespace {

constexpr float kThreshold = kRoughThreshold;

std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all;
  for (std::size_t n = 1; n <= 200; ++n) all.push_back(n);
  for (std::size_t n : {1023, 1024, 1025, 2047, 2048, 2112}) all.push_back(n);
  for (std::size_t n = 4095; n <= 4099; ++n) all.push_back(n);
  for (std::size_t n = 65535; n <= 65537; ++n) all.push_back(n);
  all.push_back(200003);
  return all;
}

bool equal(const UnitSums& a, const UnitSums& b) {
  return std::memcmp(a.all.data(), b.all.data(), sizeof a.all) == 0 &&
         std::memcmp(a.selected.data(), b.selected.data(), sizeof a.selected) == 0 &&
         a.selected_count == b.selected_count && a.blocks == b.blocks;
}

/// A unit of which a block has been measured already, if there is room for the elements then.
UnitSums begun_unit(std::size_t elements) {
  return elements <= kUnitElements - kBlockElements ? UnitSums{{1.5f}, {0.5f}, 3, 1} : UnitSums{};
}

void check_encode(std::size_t elements, const Quantiser& quantiser, bool with_residual, bool with_sums,
                  unsigned rarity) {
  const std::vector<float> grad = rough_values(elements, 1 + static_cast<unsigned>(elements), rarity);
  std::vector<float> expected_residual = rough_values(elements, 2, rarity);
  std::vector<float> residual = expected_residual;
  std::vector<std::byte> expected(packed_bytes(elements) + 1, std::byte{0xee});
  std::vector<std::byte> out = expected;
  UnitSums expected_sums = begun_unit(elements);
  UnitSums sums = expected_sums;
  const bool expected_flag =
      encode_scalar(grad.data(), with_residual ? expected_residual.data() : nullptr, elements, quantiser,
                    expected.data(), with_sums ? &expected_sums : nullptr);
  const bool flag = encode(grad.data(), with_residual ? residual.data() : nullptr, elements, quantiser,
                           out.data(), with_sums ? &sums : nullptr);
  ASSERT_EQ(flag, expected_flag) << elements;
  ASSERT_EQ(out, expected) << elements;
  ASSERT_EQ(bits(residual), bits(expected_residual)) << elements;
  ASSERT_TRUE(equal(sums, expected_sums)) << elements;
}

TEST(TwoBitKernels, EncodeEqualsScalar) {
  on_every_target([] {
    for (std::size_t elements : sizes()) {
      for (unsigned rarity : {4u, 300u, 1u << 31}) {
        if (elements > 200 && rarity != 300) continue;
        for (bool with_residual : {false, true}) {
          check_encode(elements, {kThreshold, kThreshold, NonFinite::kSkip}, with_residual, false, rarity);
          check_encode(elements, {kThreshold, kThreshold, NonFinite::kMxnet}, with_residual, false, rarity);
          if (elements <= kUnitElements) {
            check_encode(elements, {kThreshold, 0.71f, NonFinite::kSkip}, with_residual, true, rarity);
          }
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
    check_encode(333, {kThreshold, 0, NonFinite::kSkip}, true, true, 5);
    check_encode(333, {0, 1, NonFinite::kSkip}, true, true, 5);
  });
}

TEST(TwoBitKernels, MeasureEqualsScalar) {
  on_every_target([] {
    for (std::size_t elements : sizes()) {
      if (elements > kUnitElements) continue;
      const std::vector<float> grad = rough_values(elements, 5, 7);
      const std::vector<float> residual = rough_values(elements, 6, 7);
      for (const float* kept : {static_cast<const float*>(nullptr), residual.data()}) {
        UnitSums expected = begun_unit(elements);
        UnitSums sums = expected;
        measure_scalar(grad.data(), kept, elements, kThreshold, &expected);
        measure(grad.data(), kept, elements, kThreshold, &sums);
        ASSERT_TRUE(equal(sums, expected)) << elements;
      }
    }
  });
}

TEST(TwoBitKernels, SumsEqualScalar) {
  on_every_target([] {
    for (std::size_t ways : {1, 2, 7, 8, 15, 127, 128}) {
      for (std::size_t elements : sizes()) {
        if ((elements > 5000 && ways > 2) || (ways > 8 && elements % 7 > 1)) continue;
        constexpr std::size_t kOffset = 5;
        std::vector<std::vector<std::byte>> bytes;
        for (std::size_t w = 0; w < ways; ++w) {
          bytes.push_back(random_bytes(kOffset + packed_bytes(elements), static_cast<unsigned>(w)));
        }
        const std::vector<Payload> payloads(bytes.begin(), bytes.end());
        const Codes codes{payloads, kOffset};
        // One float beyond the end must stay; the odd start keeps the output unaligned.
        std::vector<float> expected(elements + 2, 7);
        std::vector<float> out = expected;
        sum_to_floats_scalar(codes, elements, 0.3f, expected.data() + 1);
        sum_to_floats(codes, elements, 0.3f, out.data() + 1);
        ASSERT_EQ(bits(out), bits(expected)) << ways << " ways, " << elements;
        std::vector<std::byte> expected_planes(plane_bytes(elements, ways) + 1, std::byte{0xee});
        std::vector<std::byte> planes = expected_planes;
        sum_to_planes_scalar(codes, elements, expected_planes.data());
        sum_to_planes(codes, elements, planes.data());
        ASSERT_EQ(planes, expected_planes) << ways << " ways, " << elements;
        std::vector<float> back(elements + 2, 7);
        EXPECT_LE(planes_to_floats(planes.data(), ways, elements, 0.3f, back.data() + 1), 2 * ways);
        ASSERT_EQ(bits(back), bits(expected)) << ways << " ways, " << elements;
      }
    }
  });
}

TEST(TwoBitKernels, EncodeWithABfloat16ResidualEqualsScalar) {
  on_every_target([] {
    for (std::size_t elements : sizes()) {
      for (unsigned rarity : {20u, 4000u}) {
        const auto grad = rough_values(elements, 1 + static_cast<unsigned>(elements), rarity);
        std::vector<std::byte> expected_residual(2 * elements);
        const auto kept = rough_values(elements, 2, rarity);
        for (std::size_t i = 0; i < elements; ++i) {
          store(dense::bf16_from_float(kept[i]), expected_residual.data() + 2 * i);
        }
        auto residual = expected_residual;
        std::vector<std::byte> expected(packed_bytes(elements) + 1, std::byte{0xee});
        auto out = expected;
        const Quantiser quantiser{kThreshold, kThreshold, NonFinite::kSkip};
        const bool flag =
            encode_bf16_scalar(grad.data(), expected_residual.data(), elements, quantiser, expected.data());
        ASSERT_EQ(encode_bf16(grad.data(), residual.data(), elements, quantiser, out.data()), flag);
        ASSERT_EQ(out, expected) << elements;
        ASSERT_EQ(residual, expected_residual) << elements;
      }
    }
  });
}

TEST(TwoBitKernels, AddEqualsScalar) {
  on_every_target([] {
    for (std::size_t elements : sizes()) {
      const auto packed = random_bytes(packed_bytes(elements), 3);
      auto expected = rough_values(elements + 1, 5, 50);
      auto out = expected;
      add_to_floats_scalar(packed.data(), elements, 0.3f, expected.data());
      add_to_floats(packed.data(), elements, 0.3f, out.data());
      ASSERT_EQ(bits(out), bits(expected)) << elements;
    }
  });
}

TEST(TwoBitKernels, ImpossibleCountsAreReportedAlike) {
  on_every_target([] {
    for (std::size_t ways : {1, 2, 8, 100, 127, 200}) {
      for (std::size_t elements : {1, 64, 65, 1000}) {
        const auto planes = random_bytes(plane_bytes(elements, ways), static_cast<unsigned>(elements));
        std::vector<float> expected(elements);
        std::vector<float> out(elements);
        const auto largest = planes_to_floats_scalar(planes.data(), ways, elements, 2, expected.data());
        ASSERT_EQ(planes_to_floats(planes.data(), ways, elements, 2, out.data()), largest);
        ASSERT_EQ(out, expected);
      }
    }
  });
}

TEST(TwoBitKernels, LargeOutputsAreTheSameAtEveryAlignment) {
  on_every_target([] {
    constexpr std::size_t kElements = 2 * kUnitElements + 77;
    const auto first = random_bytes(packed_bytes(kElements), 1);
    const auto second = random_bytes(packed_bytes(kElements), 2);
    const std::vector<Payload> both{first, second};
    for (std::size_t ways : {1, 2}) {
      const Codes codes{std::span(both).first(ways)};
      std::vector<float> expected(kElements);
      sum_to_floats_scalar(codes, kElements, 0.5f, expected.data());
      for (std::size_t shift = 0; shift < 17; ++shift) {
        std::vector<float> out(kElements + shift);
        sum_to_floats(codes, kElements, 0.5f, out.data() + shift);
        ASSERT_TRUE(
            std::equal(expected.begin(), expected.end(), out.begin() + static_cast<std::ptrdiff_t>(shift)));
      }
    }
  });
}

TEST(TwoBitScalar, CountBits) {
  EXPECT_EQ(count_bits(1), 2u);
  EXPECT_EQ(count_bits(2), 3u);
  EXPECT_EQ(count_bits(3), 3u);
  EXPECT_EQ(count_bits(4), 4u);
  EXPECT_EQ(count_bits(8), 5u);
  EXPECT_EQ(count_bits(64), 8u);
  EXPECT_EQ(count_bits(127), 8u);
  EXPECT_EQ(count_bits(128), 9u);
}

TEST(UnitSums, FoldAddsHalves) {
  std::array<float, 16> values;
  for (std::size_t i = 0; i < 16; ++i) values[i] = static_cast<float>(1u << i);
  EXPECT_EQ(fold(values), 65535.0f);
  // 1 is lost beside 2^24, and 1 + 1 is not: they meet first.
  EXPECT_EQ(fold(std::array<float, 4>{16777216.0f, 1, 0, 1}), 16777218.0f);
}

TEST(UnitSums, AnInfiniteSumIsTheLargestFloat) {
  UnitSums sums;
  sums.all[3] = sums.all[4] = std::numeric_limits<float>::max();
  EXPECT_EQ(sums.sum_all(), std::numeric_limits<float>::max());
  EXPECT_EQ(sums.sum_selected(), 0.0f);
}

TEST(UnitSums, ElementsGoToLanesOfTheirBlock) {
  std::vector<float> grad(kBlockElements + kSumLanes + 2);
  grad[1] = grad[1 + kSumLanes] = 2;      // one lane of the first block
  grad[kBlockElements + kSumLanes] = -3;  // the second block
  UnitSums sums;
  measure_scalar(grad.data(), nullptr, grad.size(), 2.5f, &sums);
  EXPECT_EQ(sums.blocks, 2u);
  EXPECT_EQ(sums.all[0], 4.0f);
  EXPECT_EQ(sums.all[1], 3.0f);
  EXPECT_EQ(sums.selected[0], 0.0f);
  EXPECT_EQ(sums.selected[1], 3.0f);
  EXPECT_EQ(sums.selected_count, 1u);
}

}  // namespace
}  // namespace gradwire::compress::two_bit
