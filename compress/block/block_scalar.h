// Codes of 2, 4 or 8 bits with a scale for each block, block by block: the specification of block_kernels, on
// every target byte for byte.
//
// Source: block-wise symmetric quantisation as in QSGD's buckets (Alistarh et al. 2017, section 4), Dettmers
// et al. 2022 (8-bit optimizers, block-wise) and CGX (Markov et al. 2022, section 4).
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "compress/block/block_code.h"
#include "compress/block/normal_float.h"
#include "compress/dense/dense_scalar.h"
#include "compress/payload/float_bits.h"
#include "compress/payload/host_device.h"
#include "compress/payload/lane_sums.h"
#include "compress/payload/little_endian.h"
#include "compress/stochastic/dither.h"

namespace gradwire::compress::block {

inline constexpr std::size_t kLeastBlock = 32;
inline constexpr std::size_t kMostBlock = 4096;

constexpr std::size_t scale_count(std::size_t elements, std::size_t block) {
  return (elements + block - 1) / block;
}

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
