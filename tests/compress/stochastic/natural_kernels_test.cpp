// natural: every SIMD target against the scalar specification.
#include "compress/stochastic/natural_kernels.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/compress/rough_values.h"
#include "tests/compress/simd_targets.h"

namespace gradwire::compress::natural {
namespace {

constexpr std::size_t kGuard = 64;  // bytes behind an output that must stay

/// 0 to 257 elements, and many.
std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t elements = 0; elements <= 257; ++elements) all.push_back(elements);
  all.insert(all.end(), {4095, 4096, 4099, 65537});
  return all;
}

struct Payload {
  std::vector<std::byte> exponents;
  std::vector<std::byte> signs;

  explicit Payload(std::size_t elements)
      : exponents(elements + kGuard, std::byte{0xee}),
        signs(sign_bytes(elements) + kGuard, std::byte{0xee}) {}
  bool operator==(const Payload&) const = default;
};

TEST(NaturalKernels, EncodeEqualsScalar) {
  const std::optional<Dither> dithers[] = {
      std::nullopt, Dither{7, {0xffffffff, 3, 0x1ffffffff, std::uint64_t{11} * kUnitElements}}};
  on_every_target([&] {
    for (std::size_t elements : lengths()) {
      for (unsigned rarity : {4u, 4000u}) {
        const auto grad = rough_values(elements, 1, rarity);
        for (const auto& dither : dithers) {
          for (bool with_residual : {false, true}) {
            auto expected_residual = rough_values(elements, 2, rarity);
            auto residual = expected_residual;
            Payload expected(elements);
            Payload out = expected;
            const Dither* const draw = dither ? &*dither : nullptr;
            const bool flag =
                encode_scalar(grad.data(), with_residual ? expected_residual.data() : nullptr, elements, draw,
                              0, expected.exponents.data(), expected.signs.data());
            EXPECT_EQ(encode(grad.data(), with_residual ? residual.data() : nullptr, elements, draw,
                             out.exponents.data(), out.signs.data()),
                      flag);
            ASSERT_EQ(out, expected) << elements;
            ASSERT_EQ(bits(residual), bits(expected_residual)) << elements;
          }
        }
      }
    }
  });
}

TEST(NaturalKernels, DecodeEqualsScalarForAnyBytes) {
  on_every_target([] {
    for (std::size_t elements : lengths()) {
      const auto exponents = random_bytes(elements, 3);
      const auto signs = random_bytes(sign_bytes(elements), 4);
      for (bool add : {false, true}) {
        auto expected = rough_values(elements + 1, 5, 50);
        auto out = expected;
        decode_scalar(exponents.data(), signs.data(), elements, add, expected.data());
        decode(exponents.data(), signs.data(), elements, add, out.data());
        ASSERT_EQ(bits(out), bits(expected)) << elements;
      }
    }
  });
}

}  // namespace
}  // namespace gradwire::compress::natural
