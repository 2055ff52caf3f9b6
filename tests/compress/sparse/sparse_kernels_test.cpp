// A few elements of a unit: every SIMD target against the scalar specification, and the largest elements
// against sorting all.
#include "compress/sparse/sparse_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "compress/sparse/largest_elements.h"
#include "tests/compress/codec_cases.h"
#include "tests/compress/rough_values.h"
#include "tests/compress/simd_targets.h"

namespace gradwire::compress::sparse {
namespace {

/// 0 to 257 elements, and many.
std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t elements = 0; elements <= 257; ++elements) all.push_back(elements);
  all.insert(all.end(), {4095, 4096, 4099, kUnitElements});
  return all;
}

TEST(SparseKernels, AccumulateEqualsScalar) {
  on_every_target([] {
    for (std::size_t elements : lengths()) {
      for (unsigned rarity : {20u, 4000u}) {
        const auto grad = rough_values(elements, 1, rarity);
        for (bool with_residual : {false, true}) {
          auto expected_residual = rough_values(elements, 2, rarity);
          auto residual = expected_residual;
          std::vector<float> expected(elements + 1, 7);
          auto x = expected;
          const bool flag = accumulate_scalar(grad.data(), with_residual ? expected_residual.data() : nullptr,
                                              elements, expected.data());
          EXPECT_EQ(accumulate(grad.data(), with_residual ? residual.data() : nullptr, elements, x.data()),
                    flag);
          ASSERT_EQ(bits(x), bits(expected)) << elements;
          ASSERT_EQ(bits(residual), bits(expected_residual)) << elements;
        }
      }
    }
  });
}

TEST(SparseKernels, CollectEqualsScalar) {
  on_every_target([] {
    for (std::size_t elements : lengths()) {
      const auto x = gaussian(elements, 1);
      for (float least : {0.0f, 0.1f, 1.0f, 1e30f}) {
        std::vector<std::uint32_t> expected(elements + kCollectSlack);
        std::vector<std::uint32_t> indices(elements + kCollectSlack);
        const std::size_t count = collect_scalar(x.data(), elements, magnitude_bits(least), expected.data());
        ASSERT_EQ(collect(x.data(), elements, magnitude_bits(least), indices.data()), count);
        ASSERT_TRUE(std::equal(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(count),
                               expected.begin()));
      }
    }
  });
}

/// Unit after unit that a sample misjudges, each in its way.
std::vector<std::vector<float>> units_of(std::size_t elements) {
  std::vector<std::vector<float>> units{gaussian(elements, 1), std::vector<float>(elements),
                                        std::vector<float>(elements, -3), gaussian(elements, 2),
                                        gaussian(elements, 3, 1e-3f)};
  for (std::size_t i = 0; i < elements; ++i) units[3][i] = std::round(units[3][i] * 4);  // many ties
  for (std::size_t i = 0; i < elements; i += 61) units[4][i] = 100;                      // where it looks
  return units;
}

TEST(LargestElements, AreThoseThatSortingFinds) {
  LargestElements largest;
  for (std::size_t elements : {1, 2, 17, 257, 4099, 65536}) {
    for (const auto& x : units_of(elements)) {
      for (double ratio : {1e-6, 0.001, 0.01, 0.3, 0.999, 1.0}) {
        const std::size_t count = sent_count(static_cast<float>(ratio), elements);
        const auto found = largest.find(x.data(), elements, count);
        ASSERT_EQ(std::vector<std::uint32_t>(found.begin(), found.end()),
                  largest_by_sorting(x.data(), elements, count))
            << count << " of " << elements;
      }
    }
  }
}

TEST(SentCount, IsTheRatioRoundedUpAndNeverNone) {
  EXPECT_EQ(sent_count(0.01f, 65536), 656u);
  EXPECT_EQ(sent_count(0.1f, 100), 10u);
  EXPECT_EQ(sent_count(0.5f, 3), 2u);
  EXPECT_EQ(sent_count(1e-9f, 100), 1u);
  EXPECT_EQ(sent_count(1, 100), 100u);
  EXPECT_EQ(sent_count(0.01f, 0), 0u);
}

}  // namespace
}  // namespace gradwire::compress::sparse
