// Natural compression element by element: the specification of natural_kernels, on every target byte for
// byte.
//
// Source: Horvath, Ho, Horvath, Sahu, Canini and Richtarik 2019, "Natural compression for distributed deep
// learning", section 2.1, equation 4: x becomes one of the two powers of two around it, with the
// probabilities that keep its mean. In a float's bits that is one addition: random bits below the exponent
// carry into it with just that probability.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "compress/payload/float_bits.h"
#include "compress/payload/host_device.h"
#include "compress/payload/little_endian.h"
#include "compress/stochastic/dither.h"

namespace gradwire::compress::natural {

inline constexpr unsigned kFractionBits = 23;
inline constexpr std::uint32_t kLargestExponent = 254;   // 2^127; above it are infinity and NaN
inline constexpr std::uint32_t kToNearest = 0x80000000;  // in place of a random word: half of a power's way

/// A bit an element, whole bytes.
constexpr std::size_t sign_bytes(std::size_t elements) { return (elements + 7) / 8; }

/// The exponent, as float32 has it, of the power of two that a finite x becomes; 0 stands for 0. What would
/// become 2^128 becomes 2^127.
GRADWIRE_HOST_DEVICE inline std::uint32_t exponent_of(float x, std::uint32_t word) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(magnitude(x));
  return std::min((bits + (word >> (32 - kFractionBits))) >> kFractionBits, std::uint32_t{kLargestExponent});
}

GRADWIRE_HOST_DEVICE inline float value_of(std::uint32_t exponent, bool negative) noexcept {
  return std::bit_cast<float>(exponent << kFractionBits | (negative ? std::uint32_t{kSignBit} : 0u));
}

/// The sign of element i: bit i % 8 of byte i / 8.
GRADWIRE_HOST_DEVICE inline bool sign_at(const std::byte* signs, std::size_t i) noexcept {
  return (std::to_integer<unsigned>(signs[i / 8]) >> (i % 8) & 1) != 0;
}

/// Encodes x = residual + grad (x = grad when residual is null) and keeps x - sent. An x that is not finite
/// sends 0 and leaves the residual as it was. dither is null, to round to nearest, or applies from its
/// element `first` on. Writes `elements` exponents and sign_bytes(elements) bytes of signs, absent ones 0.
/// Returns true when such an x was found.
inline bool encode_scalar(const float* grad, float* residual, std::size_t elements, const Dither* dither,
                          std::size_t first, std::byte* exponents, std::byte* signs) noexcept {
  bool nonfinite = false;
  std::fill_n(signs, sign_bytes(elements), std::byte{0});
  for (std::size_t i = 0; i < elements; ++i) {
    const float x = residual == nullptr ? grad[i] : residual[i] + grad[i];
    if (!is_finite(x)) {
      nonfinite = true;
      exponents[i] = std::byte{0};
      continue;
    }
    const std::uint32_t exponent = exponent_of(x, dither == nullptr ? kToNearest : dither->word(first + i));
    const bool negative = (std::bit_cast<std::uint32_t>(x) & kSignBit) != 0;
    exponents[i] = static_cast<std::byte>(exponent);
    if (negative) signs[i / 8] |= static_cast<std::byte>(1u << (i % 8));
    if (residual != nullptr) residual[i] = x - value_of(exponent, negative);
  }
  return nonfinite;
}

/// Writes what elements stand for to out, or adds it.
inline void decode_scalar(const std::byte* exponents, const std::byte* signs, std::size_t elements, bool add,
                          float* out) noexcept {
  for (std::size_t i = 0; i < elements; ++i) {
    const float value = value_of(std::to_integer<std::uint32_t>(exponents[i]), sign_at(signs, i));
    out[i] = add ? out[i] + value : value;
  }
}

}  // namespace gradwire::compress::natural
