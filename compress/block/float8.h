// Floats of eight bits, without NaN and infinity.
//
// Source: Micikevicius et al. 2022, table 1.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "compress/payload/float_bits.h"
#include "compress/payload/host_device.h"

namespace gradwire::compress::block {

/// What an 8-bit float is made of. Its exponent 0 means a subnormal number; it has no infinity and no NaN
/// here.
struct Float8 {
  int fraction_bits;
  std::uint32_t largest_bits;          ///< of the largest value, as a float
  std::uint32_t smallest_normal_bits;  ///< of the smallest normal value, as a float
  float subnormal_rounder;             ///< a float whose last bit weighs what the smallest subnormal is worth

  constexpr int shift() const { return 23 - fraction_bits; }
  /// Difference of the exponents' biases, in a float's place.
  constexpr std::uint32_t rebias() const { return smallest_normal_bits - (1u << 23); }
  constexpr std::uint32_t rounder_bits() const { return std::bit_cast<std::uint32_t>(subnormal_rounder); }
};

/// Rounds a float to eight bits, ties to even; what is beyond the largest value becomes it.
GRADWIRE_HOST_DEVICE inline std::uint8_t float8_from_float(const Float8& format, float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = std::min(bits & ~kSignBit, format.largest_bits);
  std::uint32_t rounded;
  if (magnitude < format.smallest_normal_bits) {
    rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + format.subnormal_rounder) -
              format.rounder_bits();
  } else {
    const std::uint32_t half_less_one = (1u << (format.shift() - 1)) - 1;
    rounded =
        (magnitude - format.rebias() + half_less_one + ((magnitude >> format.shift()) & 1)) >> format.shift();
  }
  return static_cast<std::uint8_t>(rounded | ((bits & kSignBit) >> 24));
}

/// Reads eight bits. The highest exponent is one more than those below it, also where the format has NaN.
GRADWIRE_HOST_DEVICE inline float float_from_float8(const Float8& format, std::uint8_t eight) noexcept {
  const std::uint32_t magnitude = eight & 0x7fu;
  std::uint32_t bits;
  if (magnitude < 1u << format.fraction_bits) {
    bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude | format.rounder_bits()) -
                                        format.subnormal_rounder);
  } else {
    bits = (magnitude << format.shift()) + format.rebias();
  }
  return std::bit_cast<float>(bits | ((eight & 0x80u) << 24));
}

}  // namespace gradwire::compress::block
