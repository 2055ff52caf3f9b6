// What the codecs that send every element do to one element: the specification of dense_kernels.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/codec.h"
#include "compress/little_endian.h"

namespace gradwire::compress::dense {

/// How one element travels.
enum class Format : std::uint8_t {
  kF32,        ///< the float as it is, NaN and infinity included
  kF32Finite,  ///< the float, or 0 where it is not finite
  kF16,        ///< IEEE binary16; 0 where the float is not finite, saturated beyond +-65504
  kBf16,       ///< the upper half of the float, rounded; 0 and saturated likewise
};

constexpr std::size_t bytes_per_element(Format format) {
  return format == Format::kF32 || format == Format::kF32Finite ? 4 : 2;
}

inline constexpr std::uint32_t kSignBit = 0x80000000;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000;
inline constexpr std::uint32_t kF16LargestBits = 0x477fe000;     // 65504 as a float
inline constexpr std::uint32_t kF16SmallestNormal = 0x38800000;  // 2^-14 as a float
inline constexpr std::uint32_t kF16Rebias = 112u << 23;          // difference of the exponents' biases
inline constexpr std::uint32_t kHalfBits = 0x3f000000;  // 0.5f: its last bit weighs 2^-24, as binary16's
inline constexpr std::uint32_t kBf16Largest = 0x7f7f;

/// Rounds a finite float to binary16, ties to even.
inline std::uint16_t f16_from_float(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = std::min(bits & ~kSignBit, kF16LargestBits);
  std::uint32_t rounded;
  if (magnitude < kF16SmallestNormal) {
    rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - kHalfBits;
  } else {
    rounded = (magnitude - kF16Rebias + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  }
  return static_cast<std::uint16_t>(rounded | ((bits & kSignBit) >> 16));
}

inline float float_from_f16(std::uint16_t half) noexcept {
  const std::uint32_t magnitude = half & 0x7fffu;
  std::uint32_t bits;
  if (magnitude < 0x400) {
    bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude | kHalfBits) - 0.5f);
  } else {
    bits = (magnitude << 13) + (magnitude >= 0x7c00 ? 2 * kF16Rebias : kF16Rebias);
  }
  return std::bit_cast<float>(bits | ((half & 0x8000u) << 16));
}

/// Rounds a finite float to bfloat16, ties to even.
inline std::uint16_t bf16_from_float(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & ~kSignBit;
  const std::uint32_t rounded = std::min((magnitude + 0x7fff + ((magnitude >> 16) & 1)) >> 16, kBf16Largest);
  return static_cast<std::uint16_t>(rounded | ((bits & kSignBit) >> 16));
}

inline float float_from_bf16(std::uint16_t upper) noexcept {
  return std::bit_cast<float>(std::uint32_t{upper} << 16);
}

inline float decode_element(Format format, const std::byte* from) noexcept {
  switch (format) {
    case Format::kF16:
      return float_from_f16(load<std::uint16_t>(from));
    case Format::kBf16:
      return float_from_bf16(load<std::uint16_t>(from));
    default:
      return load<float>(from);
  }
}

inline void encode_element(Format format, float x, std::byte* to) noexcept {
  switch (format) {
    case Format::kF16:
      return store(f16_from_float(x), to);
    case Format::kBf16:
      return store(bf16_from_float(x), to);
    default:
      return store(x, to);
  }
}

/// Sends x = grad + residual and keeps x - sent. An x that is not finite leaves the residual as it was.
/// Returns true when such an x was met. residual may be null.
inline bool encode_scalar(Format format, const float* grad, float* residual, std::size_t elements,
                          std::byte* out) noexcept {
  const std::size_t width = bytes_per_element(format);
  bool nonfinite = false;
  for (std::size_t i = 0; i < elements; ++i) {
    const float x = residual == nullptr ? grad[i] : residual[i] + grad[i];
    std::byte* const to = out + i * width;
    if (!std::isfinite(x)) {
      nonfinite = true;
      encode_element(format, format == Format::kF32 ? x : 0.0f, to);
      continue;
    }
    encode_element(format, x, to);
    if (residual != nullptr) residual[i] = x - decode_element(format, to);
  }
  return nonfinite;
}

/// Writes ((p0 + p1) + p2) + ... in float; the elements start `offset` bytes into every payload.
/// Returns true when a sum is not finite.
inline bool sum_scalar(Format format, std::span<const Payload> payloads, std::size_t offset,
                       std::size_t elements, float* out) noexcept {
  const std::size_t width = bytes_per_element(format);
  bool nonfinite = false;
  for (std::size_t i = 0; i < elements; ++i) {
    float sum = decode_element(format, payloads[0].data() + offset + i * width);
    for (const Payload& payload : payloads.subspan(1)) {
      sum += decode_element(format, payload.data() + offset + i * width);
    }
    out[i] = sum;
    nonfinite |= !std::isfinite(sum);
  }
  return nonfinite;
}

}  // namespace gradwire::compress::dense
