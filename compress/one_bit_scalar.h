// One bit an element, element by element: the specification of one_bit_kernels, on every target byte for
// byte.
//
// Source: MXNet's gradient compression (kvstore, 2.0) for the packing and for the form with a threshold;
// Karimireddy et al. 2019, "Error feedback fixes signSGD", algorithm 1, for the sign scaled by the mean of
// |x|; Seide et al. 2014 for the residual; Bernstein et al. 2018, "signSGD", for the majority vote.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "compress/float_bits.h"
#include "compress/host_device.h"
#include "compress/little_endian.h"

namespace gradwire::compress::one_bit {

/// Bits come in words of 32, as MXNet's.
constexpr std::size_t packed_bytes(std::size_t elements) { return (elements + 31) / 32 * 4; }

/// The bit of element i % 8 of a byte: element 0 is the most significant one.
constexpr unsigned bit_shift(std::size_t i) { return static_cast<unsigned>(7 - i % 8); }

GRADWIRE_HOST_DEVICE inline bool bit_at(const std::byte* packed, std::size_t i) noexcept {
  return (std::to_integer<unsigned>(packed[i / 8]) >> bit_shift(i) & 1) != 0;
}

/// What an element sends: there is no zero among the codes.
GRADWIRE_HOST_DEVICE inline float value_of(bool bit, float level) noexcept { return bit ? level : -level; }

/// The least float for which x > bound holds.
inline float above(float bound) noexcept {
  return std::nextafter(bound, std::numeric_limits<float>::infinity());
}

/// Encodes x = residual + grad (x = grad when residual is null) as x >= least, and keeps x - sent. Where x is
/// not finite, the gradient counts as 0; so does a residual that is not. Writes packed_bytes(elements) bytes,
/// absent elements as 0. Returns true when a non-finite x was met.
inline bool encode_scalar(const float* grad, float* residual, std::size_t elements, float least, float level,
                          std::byte* out) noexcept {
  bool nonfinite = false;
  std::fill_n(out, packed_bytes(elements), std::byte{0});
  for (std::size_t i = 0; i < elements; ++i) {
    const float kept = residual == nullptr ? 0 : residual[i];
    float x = residual == nullptr ? grad[i] : kept + grad[i];
    if (!is_finite(x)) {
      nonfinite = true;
      x = is_finite(kept) ? kept : 0;
    }
    const bool bit = x >= least;
    if (bit) out[i / 8] |= std::byte(1u << bit_shift(i));
    if (residual != nullptr) residual[i] = x - value_of(bit, level);
  }
  return nonfinite;
}

/// Writes +level or -level to out, or adds it.
inline void decode_scalar(const std::byte* packed, std::size_t elements, float level, bool add,
                          float* out) noexcept {
  for (std::size_t i = 0; i < elements; ++i) {
    const float value = value_of(bit_at(packed, i), level);
    out[i] = add ? out[i] + value : value;
  }
}

}  // namespace gradwire::compress::one_bit
