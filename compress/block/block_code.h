// The codes of 2, 4 or 8 bits that a scaled element becomes, one by one and packed. A width divides 8:
// put_code(), the kernels and a device's items of four elements rely on codes that lie within one byte.
// Another width needs a room of its own (payload/bit_stream.h).
//
// Source: fp8: float8.h; nf2 and nf4: normal_float.h. Integers are rounded to nearest, or dithered.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "compress/block/float8.h"
#include "compress/block/normal_float.h"
#include "compress/payload/float_bits.h"
#include "compress/payload/host_device.h"

namespace gradwire::compress::block {

/// What a scaled element becomes.
enum class Code : std::uint8_t {
  kInt8,  ///< -127 to 127, two's complement
  kInt4,  ///< -7 to 7, two's complement in four bits, the even element in the lower half of its byte
  kE4m3,  ///< sign, 4 bits of exponent, 3 of fraction; -448 to 448
  kE5m2,  ///< sign, 5 bits of exponent, 2 of fraction; -57344 to 57344
  kNf2,  ///< bit 1: the sign; bit 0: 4, else 1. Element 4b + j of a block in bits 2j and 2j + 1 of its byte b
  kNf4,  ///< one of 16 values of int8, by its number, in the place of int4's
};

/// The format of a code that is one: as a function, since a constant has no address on a device.
constexpr Float8 float8_of(Code code) {
  if (code == Code::kE5m2) return {2, 0x47600000, 0x38800000, 128};  // 57344, 2^-14, 2^7 (last bit 2^-16)
  return {3, 0x43e00000, 0x3c800000, 16384};                         // 448, 2^-6, 2^14 (last bit 2^-9)
}
inline constexpr Float8 kFloatE4m3 = float8_of(Code::kE4m3);
inline constexpr Float8 kFloatE5m2 = float8_of(Code::kE5m2);

constexpr bool is_integer(Code code) { return code == Code::kInt8 || code == Code::kInt4; }

constexpr bool is_normal_float(Code code) { return code == Code::kNf2 || code == Code::kNf4; }

constexpr std::size_t code_bits(Code code) {
  switch (code) {
    case Code::kInt4:
    case Code::kNf4:
      return 4;
    case Code::kNf2:
      return 2;
    case Code::kInt8:
    case Code::kE4m3:
    case Code::kE5m2:
      return 8;
  }
  return 0;
}

/// Bytes of a scale in a payload: a bfloat16, else a float32.
constexpr std::size_t scale_bytes(Code code) { return is_normal_float(code) ? 2 : 4; }

/// Whether the scale is made of a block's sums of |x|, too, not of its largest |x| alone.
constexpr bool scales_by_sums(Code code) { return code == Code::kNf2; }

/// Whether an element can send 0.
constexpr bool has_zero(Code code) { return code != Code::kNf2; }

/// The value of the largest code; nf4's is a little less.
constexpr float largest(Code code) {
  switch (code) {
    case Code::kInt4:
      return 7;
    case Code::kE4m3:
      return 448;
    case Code::kE5m2:
      return 57344;
    case Code::kNf2:
      return kLargeLevel;
    case Code::kInt8:
    case Code::kNf4:
      return 127;
  }
  return 0;
}

/// Bytes of the codes of `elements` elements; bits of the last one that no element has are 0.
constexpr std::size_t code_bytes(Code code, std::size_t elements) {
  return (elements * code_bits(code) + 7) / 8;
}

/// A sum of this and a float that is small beside it is rounded to an integer, ties to even, in its last
/// bits.
inline constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23

/// The code of a scaled element, in the lowest code_bits(code) bits.
GRADWIRE_HOST_DEVICE inline std::uint8_t code_of(Code code, float scaled) noexcept {
  if (code == Code::kNf2) return nf2_code_of(scaled);
  if (code == Code::kE4m3 || code == Code::kE5m2) return float8_from_float(float8_of(code), scaled);
  const std::uint32_t rounded =
      std::bit_cast<std::uint32_t>(scaled + kRounder) - std::bit_cast<std::uint32_t>(kRounder);
  if (code == Code::kNf4) return nf4_code_of(static_cast<std::int8_t>(rounded));
  return static_cast<std::uint8_t>(code == Code::kInt4 ? rounded & 15 : rounded);
}

/// What a code stands for before it is scaled.
GRADWIRE_HOST_DEVICE inline float value_of(Code code, std::uint8_t bits) noexcept {
  if (code == Code::kNf2) return nf2_value_of(bits);
  if (code == Code::kNf4) return static_cast<float>(nf4_level_of(bits));
  if (!is_integer(code)) return float_from_float8(float8_of(code), bits);
  if (code == Code::kInt4) return static_cast<float>(static_cast<int>(bits ^ 8u) - 8);
  return static_cast<float>(static_cast<std::int8_t>(bits));
}

/// The integer of a scaled element, rounded up in magnitude where `uniform` is below its fraction.
GRADWIRE_HOST_DEVICE inline std::uint8_t dithered_code_of(Code code, float scaled, float uniform) noexcept {
  const float size = magnitude(scaled);
  const auto lower = static_cast<int>(size);
  const int up = uniform < size - static_cast<float>(lower) ? 1 : 0;
  const int level = std::min(lower + up, static_cast<int>(largest(code)));
  const auto bits = static_cast<std::uint32_t>(scaled < 0 ? -level : level);
  return static_cast<std::uint8_t>(code == Code::kInt4 ? bits & 15 : bits);
}

/// Puts the code of element i of a block into its place, after those before it: the lowest bits of a byte
/// come first.
inline void put_code(Code code, std::uint8_t bits, std::size_t i, std::byte* codes) noexcept {
  const std::size_t bit = i * code_bits(code);
  std::byte& byte = codes[bit / 8];
  byte = (bit % 8 == 0 ? std::byte{0} : byte) | std::byte(bits << bit % 8);
}

inline std::uint8_t get_code(Code code, std::size_t i, const std::byte* codes) noexcept {
  const std::size_t bit = i * code_bits(code);
  return static_cast<std::uint8_t>(std::to_integer<unsigned>(codes[bit / 8]) >> bit % 8 &
                                   ((1u << code_bits(code)) - 1));
}

}  // namespace gradwire::compress::block
