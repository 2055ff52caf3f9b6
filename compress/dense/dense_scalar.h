// The rule of the codecs that send every element, for one element: the specification of dense_kernels.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/codec.h"
#include "compress/payload/float_bits.h"
#include "compress/payload/host_device.h"
#include "compress/payload/little_endian.h"

namespace gradwire::compress::dense {

/// How one element travels.
enum class Format : std::uint8_t {
  kF32,        ///< the float as it is, NaN and infinity included
  kF32Finite,  ///< the float, or 0 where it is not finite
  kF16,        ///< IEEE binary16; 0 where the float is not finite, +-65504 beyond
  kBf16,       ///< the upper half of the float, rounded; 0 where it is not finite, the largest beyond
};

constexpr std::size_t bytes_per_element(Format format) {
  return format == Format::kF32 || format == Format::kF32Finite ? 4 : 2;
}

inline constexpr std::uint32_t kF16LargestBits = 0x477fe000;     // 65504 as a float
inline constexpr std::uint32_t kF16SmallestNormal = 0x38800000;  // 2^-14 as a float
inline constexpr std::uint32_t kF16Rebias = 112u << 23;          // difference of the exponents' biases
inline constexpr std::uint32_t kHalfBits = 0x3f000000;  // 0.5f: its last bit weighs 2^-24, as binary16's
inline constexpr std::uint32_t kBf16Largest = 0x7f7f;

/// The magnitude's bits from which on a format has no value near: NaN and infinity, and what IEEE's rounding
/// would make an infinity of.
constexpr std::uint32_t first_beyond(Format format) {
  return format == Format::kF16 ? 0x477ff000u : format == Format::kBf16 ? 0x7f7f8000u : kInfinityBits;
}

/// Rounds a finite float to binary16, ties to even.
GRADWIRE_HOST_DEVICE inline std::uint16_t f16_from_float(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = std::min(bits & ~kSignBit, std::uint32_t{kF16LargestBits});
  std::uint32_t rounded;
  if (magnitude < kF16SmallestNormal) {
    rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - kHalfBits;
  } else {
    rounded = (magnitude - kF16Rebias + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  }
  return static_cast<std::uint16_t>(rounded | ((bits & kSignBit) >> 16));
}

GRADWIRE_HOST_DEVICE inline float float_from_f16(std::uint16_t half) noexcept {
  const std::uint32_t magnitude = half & 0x7fffu;
  std::uint32_t bits;
  if (magnitude < 0x400) {
    bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude | kHalfBits) - 0.5f);
  } else {
    bits = (magnitude << 13) + (magnitude >= 0x7c00 ? 2 * kF16Rebias : kF16Rebias);
  }
  return std::bit_cast<float>(bits | ((half & 0x8000u) << 16));
}

/// Rounds a float to bfloat16, ties to even, and what is beyond to the largest. Infinity stays, and so does a
/// NaN that was widened from bfloat16.
GRADWIRE_HOST_DEVICE inline std::uint16_t bf16_from_float(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & ~kSignBit;
  const std::uint32_t most = std::max(magnitude >> 16, std::uint32_t{kBf16Largest});
  const std::uint32_t rounded = std::min((magnitude + 0x7fff + ((magnitude >> 16) & 1)) >> 16, most);
  return static_cast<std::uint16_t>(rounded | ((bits & kSignBit) >> 16));
}

GRADWIRE_HOST_DEVICE inline float float_from_bf16(std::uint16_t upper) noexcept {
  return std::bit_cast<float>(std::uint32_t{upper} << 16);
}

/// The bits in which a finite x travels, in the lowest bytes_per_element(format) bytes.
GRADWIRE_HOST_DEVICE inline std::uint32_t bits_from_float(Format format, float x) noexcept {
  switch (format) {
    case Format::kF16:
      return f16_from_float(x);
    case Format::kBf16:
      return bf16_from_float(x);
    default:
      return std::bit_cast<std::uint32_t>(x);
  }
}

GRADWIRE_HOST_DEVICE inline float float_from_bits(Format format, std::uint32_t bits) noexcept {
  switch (format) {
    case Format::kF16:
      return float_from_f16(static_cast<std::uint16_t>(bits));
    case Format::kBf16:
      return float_from_bf16(static_cast<std::uint16_t>(bits));
    default:
      return std::bit_cast<float>(bits);
  }
}

/// A signalling NaN, which no encoder writes, may come back quiet on vectors.
inline float decode_element(Format format, const std::byte* from) noexcept {
  if (bytes_per_element(format) == 4) return load<float>(from);
  return float_from_bits(format, load<std::uint16_t>(from));
}

/// What one element sends, as bits, and what it keeps.
struct Element {
  std::uint32_t bits = 0;
  float kept = 0;
  bool beyond = false;  ///< NaN, infinite or beyond the format
};

/// Encodes x = kept + grad, or a gradient without residual, of which `kept` is then ignored. An x that is not
/// finite leaves `kept` as it was; one beyond the format sends the largest value and keeps the rest.
GRADWIRE_HOST_DEVICE inline Element encode_element(Format format, float x, float kept) noexcept {
  if (is_finite(x)) {
    const std::uint32_t bits = bits_from_float(format, x);
    const bool beyond = std::bit_cast<std::uint32_t>(magnitude(x)) >= first_beyond(format);
    return {bits, x - float_from_bits(format, bits), beyond};
  }
  return {format == Format::kF32 ? std::bit_cast<std::uint32_t>(x) : 0, kept, true};
}

/// Sends x = grad + residual and keeps x - sent. An x that is not finite leaves the residual as it was.
/// Returns true when such an x was found, or one beyond the format. residual may be null.
inline bool encode_scalar(Format format, const float* grad, float* residual, std::size_t elements,
                          std::byte* out) noexcept {
  const std::size_t width = bytes_per_element(format);
  bool beyond = false;
  for (std::size_t i = 0; i < elements; ++i) {
    const float kept = residual == nullptr ? 0 : residual[i];
    const Element element = encode_element(format, residual == nullptr ? grad[i] : kept + grad[i], kept);
    if (width == 4) {
      store(element.bits, out + i * width);
    } else {
      store(static_cast<std::uint16_t>(element.bits), out + i * width);
    }
    if (residual != nullptr) residual[i] = element.kept;
    beyond |= element.beyond;
  }
  return beyond;
}

/// The same with a residual in bfloat16, 2 bytes an element, which is widened before and rounded after.
inline bool encode_bf16_scalar(Format format, const float* grad, std::byte* residual, std::size_t elements,
                               std::byte* out) noexcept {
  bool beyond = false;
  for (std::size_t i = 0; i < elements; ++i) {
    float kept = float_from_bf16(load<std::uint16_t>(residual + 2 * i));
    beyond |= encode_scalar(format, grad + i, &kept, 1, out + i * bytes_per_element(format));
    store(bf16_from_float(kept), residual + 2 * i);
  }
  return beyond;
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
    nonfinite |= !is_finite(sum);
  }
  return nonfinite;
}

/// Writes every element of a payload, times scale unless that is 1.
inline void decode_scalar(Format format, const std::byte* payload, std::size_t elements, float scale,
                          float* out) noexcept {
  const std::size_t width = bytes_per_element(format);
  for (std::size_t i = 0; i < elements; ++i) {
    const float value = decode_element(format, payload + i * width);
    out[i] = scale == 1 ? value : value * scale;
  }
}

}  // namespace gradwire::compress::dense
