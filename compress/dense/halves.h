// Conversions between floats and 16-bit floats as IEEE 754 has them. The codecs' own rounding
// (dense_scalar.h) sends finite values only; here what is beyond the format becomes an infinity, and a NaN
// stays one.
//
// Threading: pure functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/dense/dense_scalar.h"

namespace gradwire::compress::dense {

/// Rounds to binary16, ties to even.
inline std::uint16_t ieee_f16_from_float(float value) noexcept {
  constexpr std::uint16_t kNan = 0x7e00, kInfinity = 0x7c00, kSign = 0x8000;
  constexpr float kOverflow = 65520;  // from here on the nearest is infinity
  if (std::isnan(value)) return kNan;
  if (std::fabs(value) < kOverflow) return f16_from_float(value);
  return std::signbit(value) ? kInfinity | kSign : kInfinity;
}

/// Rounds to bfloat16, ties to even.
inline std::uint16_t ieee_bf16_from_float(float value) noexcept {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // The carry moves on by itself, up to infinity.
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Of runs, on vectors. format is kF16 or kBf16; halves holds two bytes an element.

void floats_from_halves(Format format, std::span<const std::byte> halves, std::span<float> out) noexcept;
void halves_from_floats(Format format, std::span<const float> values, std::span<std::byte> out) noexcept;

/// As halves_from_floats() to bfloat16, but a finite value beyond the format becomes its largest.
void bf16_from_residuals(std::span<const float> values, std::span<std::byte> out) noexcept;

}  // namespace gradwire::compress::dense
