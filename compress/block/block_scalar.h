// Codes of 2 to 8 bits with a scale for each block, block by block: the specification of block_kernels, on
// every target byte for byte.
//
// Source: block-wise symmetric quantisation as in QSGD's buckets (Alistarh et al. 2017, section 4), Dettmers
// et al. 2022 (8-bit optimizers, block-wise) and CGX (Markov et al. 2022, section 4); fp8: Micikevicius et
// al. 2022, table 1, without its NaN and infinity; nf2 and nf4: normal_float.h.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "compress/block/normal_float.h"
#include "compress/dense/dense_scalar.h"
#include "compress/payload/float_bits.h"
#include "compress/payload/host_device.h"
#include "compress/payload/lane_sums.h"
#include "compress/payload/little_endian.h"
#include "compress/stochastic/dither.h"

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

/// The format of a code that is one: as a function, since a constant has no address on a device.
constexpr Float8 float8_of(Code code) {
  if (code == Code::kE5m2) return {2, 0x47600000, 0x38800000, 128};  // 57344, 2^-14, 2^7 (last bit 2^-16)
  return {3, 0x43e00000, 0x3c800000, 16384};                         // 448, 2^-6, 2^14 (last bit 2^-9)
}
inline constexpr Float8 kFloatE4m3 = float8_of(Code::kE4m3);
inline constexpr Float8 kFloatE5m2 = float8_of(Code::kE5m2);

inline constexpr std::size_t kLeastBlock = 32;
inline constexpr std::size_t kMostBlock = 4096;

constexpr bool is_integer(Code code) { return code == Code::kInt8 || code == Code::kInt4; }

constexpr bool is_normal_float(Code code) { return code == Code::kNf2 || code == Code::kNf4; }

constexpr std::size_t code_bits(Code code) {
  switch (code) {
    case Code::kInt4:
    case Code::kNf4:
      return 4;
    case Code::kNf2:
      return 2;
    default:
      return 8;
  }
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
    default:
      return 127;
  }
}

constexpr std::size_t scale_count(std::size_t elements, std::size_t block) {
  return (elements + block - 1) / block;
}

/// Bytes of the codes of `elements` elements; bits of the last one that no element has are 0.
constexpr std::size_t code_bytes(Code code, std::size_t elements) {
  return (elements * code_bits(code) + 7) / 8;
}

/// A sum of this and a float that is small beside it is rounded to an integer, ties to even, in its last
/// bits.
inline constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23

/// The scale of a block whose largest |x| is given: that becomes the largest code. A scale that would be
/// subnormal is 0, and a block of scale 0 sends nothing; one that would take the largest code beyond
/// float32 is the last one that does not. nf4's is rounded to bfloat16.
GRADWIRE_HOST_DEVICE inline float scale_of(Code code, float most) noexcept {
  const float scale = most / largest(code);
  if (scale < std::numeric_limits<float>::min()) return 0;
  const float bounded = std::min(scale, 0x1.fffffcp127f / largest(code));
  return code == Code::kNf4 ? rounded_to_bf16(bounded) : bounded;
}

GRADWIRE_HOST_DEVICE inline void store_scale(Code code, float scale, std::byte* to) noexcept {
  if (scale_bytes(code) == 4) return store(scale, to);
  store(dense::bf16_from_float(scale), to);
}

GRADWIRE_HOST_DEVICE inline float load_scale(Code code, const std::byte* from) noexcept {
  return scale_bytes(code) == 4 ? load<float>(from) : dense::float_from_bf16(load<std::uint16_t>(from));
}

/// 1 / scale, or 0.
GRADWIRE_HOST_DEVICE inline float inverse_of(float scale) noexcept { return scale == 0 ? 0 : 1 / scale; }

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

/// What an element of x = kept + grad sends, before it is rounded.
GRADWIRE_HOST_DEVICE inline float to_send(Code code, float x, float kept) noexcept {
  if (!has_zero(code)) return counted(x, kept);
  return is_finite(x) ? x : 0;
}

/// The scale of a block of which send_of(i) sends element i.
template <typename SendOf>
float scale_of_block(Code code, std::size_t length, const SendOf& send_of) noexcept {
  BlockSum block;
  for (std::size_t i = 0; i < length; ++i) block.most = std::max(block.most, magnitude(send_of(i)));
  if (!scales_by_sums(code)) return scale_of(code, block.most);
  const auto above = [&](float limit) {
    LargeSum large;
    std::array<float, kSumLanes> lanes{};
    for (std::size_t i = 0; i < length; ++i) {
      if (magnitude(send_of(i)) <= limit) continue;
      lanes[i % kSumLanes] += magnitude(send_of(i));
      ++large.count;
    }
    large.sum = fold(lanes);
    return large;
  };
  block.sum = above(-1).sum;  // all
  return scale_of(block, above(limit_of(block, length)), length);
}

/// Encodes one block of x = residual + grad (x = grad when residual is null) and keeps x - sent. An x that is
/// not finite sends 0 and leaves the residual as it was; where there is no 0, its gradient counts as 0. With
/// a dither, codes are integers and element 0 is its element `first`. Returns true when such an x was found.
inline bool encode_block_scalar(Code code, const float* grad, float* residual, std::size_t length,
                                std::byte* scale_out, std::byte* codes, const Dither* dither,
                                std::size_t first) noexcept {
  const auto x_of = [&](std::size_t i) { return residual == nullptr ? grad[i] : residual[i] + grad[i]; };
  const auto send_of = [&](std::size_t i) {
    return to_send(code, x_of(i), residual == nullptr ? 0 : residual[i]);
  };
  const float scale = scale_of_block(code, length, send_of);
  const float inverse = inverse_of(scale);
  store_scale(code, scale, scale_out);
  bool nonfinite = false;
  for (std::size_t i = 0; i < length; ++i) {
    const float x = send_of(i);
    const std::uint8_t bits = dither == nullptr
                                  ? code_of(code, x * inverse)
                                  : dithered_code_of(code, x * inverse, dither->uniform(first + i));
    put_code(code, bits, i, codes);
    const bool is_good = is_finite(x_of(i));
    nonfinite |= !is_good;
    if (residual != nullptr && (is_good || !has_zero(code))) residual[i] = x - value_of(code, bits) * scale;
  }
  return nonfinite;
}

/// Encodes blocks one after the other; scales and codes are where those of the first block go. dither is null
/// or applies from its element `first` on.
inline bool encode_scalar(Code code, std::size_t block, const float* grad, float* residual,
                          std::size_t elements, std::byte* scales, std::byte* codes,
                          const Dither* dither = nullptr, std::size_t first = 0) noexcept {
  bool nonfinite = false;
  for (std::size_t i = 0; i < elements; i += block, scales += scale_bytes(code)) {
    nonfinite |= encode_block_scalar(code, grad + i, residual == nullptr ? nullptr : residual + i,
                                     std::min(block, elements - i), scales, codes + code_bytes(code, i),
                                     dither, first + i);
  }
  return nonfinite;
}

/// The same with a residual in bfloat16, 2 bytes an element, which is widened before and rounded after.
inline bool encode_bf16_scalar(Code code, std::size_t block, const float* grad, std::byte* residual,
                               std::size_t elements, std::byte* scales, std::byte* codes,
                               const Dither* dither = nullptr, std::size_t first = 0) noexcept {
  std::array<float, kMostBlock> kept;
  bool nonfinite = false;
  for (std::size_t i = 0; i < elements; i += block, scales += scale_bytes(code)) {
    const std::size_t length = std::min(block, elements - i);
    for (std::size_t j = 0; j < length; ++j)
      kept[j] = dense::float_from_bf16(load<std::uint16_t>(residual + 2 * (i + j)));
    nonfinite |= encode_block_scalar(code, grad + i, kept.data(), length, scales, codes + code_bytes(code, i),
                                     dither, first + i);
    for (std::size_t j = 0; j < length; ++j) store(dense::bf16_from_float(kept[j]), residual + 2 * (i + j));
  }
  return nonfinite;
}

/// Writes code * scale to out, or adds it.
inline void decode_scalar(Code code, std::size_t block, const std::byte* scales, const std::byte* codes,
                          std::size_t elements, bool add, float* out) noexcept {
  for (std::size_t i = 0; i < elements; ++i) {
    const float scale = load_scale(code, scales + i / block * scale_bytes(code));
    const float value = value_of(code, get_code(code, i, codes)) * scale;
    out[i] = add ? out[i] + value : value;
  }
}

}  // namespace gradwire::compress::block
