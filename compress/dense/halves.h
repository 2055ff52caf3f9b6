// Conversions between floats and 16-bit floats as IEEE 754 has them. The codecs' own rounding
// (dense_scalar.h) sends finite values only; here what is beyond the format becomes an infinity, and a NaN
// stays one.
//
// Threading: pure functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/dense/dense_scalar.h"

namespace gradwire::compress::dense {

/// Rounds to binary16, ties to even.
GRADWIRE_HOST_DEVICE inline std::uint16_t ieee_f16_from_float(float value) noexcept {
  constexpr std::uint16_t kNan = 0x7e00, kInfinity = 0x7c00;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & ~kSignBit;
  if (magnitude > kInfinityBits) return kNan;
  if (magnitude < first_beyond(Format::kF16)) return f16_from_float(value);
  return static_cast<std::uint16_t>(kInfinity | (bits & kSignBit) >> 16);
}

/// Rounds to bfloat16, ties to even.
GRADWIRE_HOST_DEVICE inline std::uint16_t ieee_bf16_from_float(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & ~kSignBit) > kInfinityBits) return 0x7fc0;
  // The carry moves on by itself, up to infinity.
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// As ieee_bf16_from_float(), but a finite value beyond the format becomes its largest.
GRADWIRE_HOST_DEVICE inline std::uint16_t bf16_from_residual(float value) noexcept {
  return is_finite(value) ? bf16_from_float(value) : ieee_bf16_from_float(value);
}

// Of runs, on vectors. format is kF16 or kBf16; halves holds two bytes an element.

void floats_from_halves(Format format, std::span<const std::byte> halves, std::span<float> out) noexcept;
void halves_from_floats(Format format, std::span<const float> values, std::span<std::byte> out) noexcept;

void bf16_from_residuals(std::span<const float> values, std::span<std::byte> out) noexcept;

}  // namespace gradwire::compress::dense
