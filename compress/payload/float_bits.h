// Properties of a float32, read from its bits, so that no compiler's view of NaN matters.
//
// Threading: all functions are pure.
#pragma once

#include <bit>
#include <cstdint>

#include "compress/payload/host_device.h"

namespace gradwire::compress {

inline constexpr std::uint32_t kSignBit = 0x80000000;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000;

GRADWIRE_HOST_DEVICE inline bool is_finite(float x) noexcept {
  return (std::bit_cast<std::uint32_t>(x) & ~kSignBit) < kInfinityBits;
}

GRADWIRE_HOST_DEVICE inline float magnitude(float x) noexcept {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & ~kSignBit);
}

/// What a code without a zero sends of x = kept + grad: where that is not finite, the gradient counts as 0;
/// so does a residual that is not.
GRADWIRE_HOST_DEVICE inline float counted(float x, float kept) noexcept {
  if (is_finite(x)) return x;
  return is_finite(kept) ? kept : 0;
}

}  // namespace gradwire::compress
