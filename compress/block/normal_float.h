// The levels of nf2 and nf4, which lie closer together near 0, and the scale of nf2.
//
// Source: NormalFloat (Dettmers et al. 2023, "QLoRA", section 3), whose levels are quantiles. nf2 has those
// of 2 bits (Li et al. 2023, "LoftQ"), of which the larger one is 3.96 times the other, here 4; a scale of
// least squares (Max 1960, half a step of his iteration) in place of the largest element's. nf4 has
// NormalFloat's scale and its signs: 0, eight levels above and seven below. The levels leave least of a
// block, by squares (Lloyd's iteration, as Blumenberg et al. 2025, "BOF4", section 3).
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "compress/dense/dense_scalar.h"
#include "compress/payload/float_bits.h"
#include "compress/payload/host_device.h"

namespace gradwire::compress::block {

/// nf2's levels are 1 and this; an element becomes the nearer one.
inline constexpr float kLargeLevel = 4;
inline constexpr float kBetweenLevels = (1 + kLargeLevel) / 2;

/// nf2's code of a scaled element. Bit 1: the sign; bit 0: kLargeLevel, else 1.
GRADWIRE_HOST_DEVICE inline std::uint8_t nf2_code_of(float scaled) noexcept {
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(scaled) >> 31;
  return static_cast<std::uint8_t>(sign << 1 | (magnitude(scaled) >= kBetweenLevels ? 1u : 0u));
}

GRADWIRE_HOST_DEVICE inline float nf2_value_of(std::uint8_t code) noexcept {
  const float level = (code & 1u) != 0 ? kLargeLevel : 1.0f;
  return (code & 2u) != 0 ? -level : level;
}

/// nf4's levels by their codes, as codes of int8: 0 and those above it, then from the lowest one on.
alignas(16) inline constexpr std::array<std::int8_t, 16> kNf4Levels{0,   9,    18,  29,  42,  55,  71,  91,
                                                                    119, -118, -88, -66, -49, -34, -21, -10};
/// The code of the lowest level.
inline constexpr unsigned kLowestNf4 = 9;

/// Eight levels as a word, which has a value on a device, where an array has no address.
constexpr std::uint64_t nf4_levels_from(std::size_t first) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 8; ++i)
    word |= std::uint64_t{static_cast<std::uint8_t>(kNf4Levels[first + i])} << (8 * i);
  return word;
}
inline constexpr std::uint64_t kNf4FromZero = nf4_levels_from(0);
inline constexpr std::uint64_t kNf4FromEight = nf4_levels_from(8);

/// What an nf4 code stands for. Requires code below 16.
constexpr std::int8_t nf4_level_of(unsigned code) {
  return static_cast<std::int8_t>((code < 8 ? kNf4FromZero : kNf4FromEight) >> (8 * (code & 7u)));
}

inline constexpr unsigned kNf4Limits = 15;

/// The least code of int8 that is above the i-th lowest level: half way to the next one, rounded up.
constexpr int nf4_limit(unsigned i) {
  return (nf4_level_of((kLowestNf4 + i) & 15u) + nf4_level_of((kLowestNf4 + i + 1) & 15u) + 1) >> 1;
}

/// The code of the level that is nearest to a code of int8; of two, of the upper one.
GRADWIRE_HOST_DEVICE inline std::uint8_t nf4_code_of(std::int8_t eight_bits) noexcept {
  unsigned code = kLowestNf4;
  GRADWIRE_UNROLL
  for (unsigned i = 0; i < kNf4Limits; ++i) code += eight_bits >= nf4_limit(i) ? 1 : 0;
  return static_cast<std::uint8_t>(code & 15u);
}

GRADWIRE_HOST_DEVICE inline float rounded_to_bf16(float value) noexcept {
  return dense::float_from_bf16(dense::bf16_from_float(value));
}

/// The largest |x| of a block, and their sum.
struct BlockSum {
  float most = 0;
  float sum = 0;
};

/// Of the elements of a block that are above limit_of(): how many, and the sum of their |x|.
struct LargeSum {
  std::uint32_t count = 0;
  float sum = 0;
};

/// What is above it counts as large where a scale is looked for: 1.5 times the mean |x|.
GRADWIRE_HOST_DEVICE inline float limit_of(const BlockSum& block, std::size_t length) noexcept {
  return 1.5f * (block.sum / static_cast<float>(length));
}

/// nf2's scale: the one that leaves least of the block, by squares, if the elements above the limit become
/// large. But the large level is at least a quarter of the largest |x|, so that what is owed to one element
/// leaves in a few rounds. Rounded to bfloat16.
GRADWIRE_HOST_DEVICE inline float scale_of(const BlockSum& block, const LargeSum& large,
                                           std::size_t length) noexcept {
  constexpr float kMost = 0x1.fep125f;  // the last bfloat16 of which the large level is finite
  constexpr auto kSquare = static_cast<std::size_t>(kLargeLevel * kLargeLevel);
  const float fitted =
      (block.sum + (kLargeLevel - 1) * large.sum) / static_cast<float>(length + (kSquare - 1) * large.count);
  const float rounded =
      rounded_to_bf16(std::min(std::max(fitted, block.most / (4 * kLargeLevel)), float{kMost}));
  return rounded < std::numeric_limits<float>::min() ? 0 : rounded;
}

}  // namespace gradwire::compress::block
