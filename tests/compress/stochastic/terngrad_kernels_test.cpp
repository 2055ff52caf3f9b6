// terngrad: every SIMD target against the scalar specification.
#include "compress/stochastic/terngrad_kernels.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/compress/rough_values.h"
#include "tests/compress/simd_targets.h"

namespace gradwire::compress::terngrad {
namespace {

/// 0 to 257 elements, and many.
std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t elements = 0; elements <= 257; ++elements) all.push_back(elements);
  all.insert(all.end(), {4095, 4096, 4099, 65536});
  return all;
}

TEST(TernGradKernels, MeasureEqualsScalar) {
  on_every_target([] {
    for (std::size_t elements : lengths()) {
      for (unsigned rarity : {20u, 4000u}) {
        const auto grad = rough_values(elements, 1, rarity);
        const auto residual = rough_values(elements, 2, rarity);
        for (const float* kept : {static_cast<const float*>(nullptr), residual.data()}) {
          Moments expected;
          Moments moments;
          measure_scalar(grad.data(), kept, elements, &expected);
          measure(grad.data(), kept, elements, &moments);
          ASSERT_EQ(moments.most, expected.most) << elements;
          ASSERT_EQ(moments.squares, expected.squares) << elements;
        }
      }
    }
  });
}

TEST(TernGradKernels, EncodeEqualsScalar) {
  const std::optional<Dither> dithers[] = {
      std::nullopt, Dither{7, {0xffffffff, 3, 0x1ffffffff, std::uint64_t{11} * kUnitElements}}};
  on_every_target([&] {
    for (std::size_t elements : lengths()) {
      for (unsigned rarity : {20u, 4000u}) {
        const auto grad = rough_values(elements, 1, rarity);
        for (const auto& dither : dithers) {
          for (const float scale : {0.0f, 0.75f, 3e38f}) {
            for (bool with_residual : {false, true}) {
              auto expected_residual = rough_values(elements, 2, rarity);
              auto residual = expected_residual;
              std::vector<std::byte> expected(two_bit::packed_bytes(elements) + 16, std::byte{0xee});
              auto out = expected;
              const Dither* const draw = dither ? &*dither : nullptr;
              const bool flag = encode_scalar(grad.data(), with_residual ? expected_residual.data() : nullptr,
                                              elements, scale, draw, kUnitElements, expected.data());
              EXPECT_EQ(encode(grad.data(), with_residual ? residual.data() : nullptr, elements, scale, draw,
                               kUnitElements, out.data()),
                        flag);
              ASSERT_EQ(out, expected) << elements;
              ASSERT_EQ(bits(residual), bits(expected_residual)) << elements;
            }
          }
        }
      }
    }
  });
}

TEST(TernGradKernels, SquaresNeitherOverflowNorVanish) {
  for (const float value : {1e-44f, 1e-30f, 3e38f}) {
    const std::vector<float> grad(1000, value);
    Moments moments;
    measure(grad.data(), nullptr, grad.size(), &moments);
    const float scale = scale_of(moments, grad.size(), 0.5f);
    EXPECT_FLOAT_EQ(scale, value < 1e-38f ? 0 : value / 2) << value;
  }
}

}  // namespace
}  // namespace gradwire::compress::terngrad
