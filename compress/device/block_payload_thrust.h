// A payload of blocks on any Thrust backend: where scales and codes lie, and the sum of such payloads.
//
// Threading: all functions are pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "compress/block/block_scalar.h"
#include "compress/dense/dense_scalar.h"
#include "compress/device/device_loader.h"
#include "compress/device/four_elements.h"
#include "compress/payload/host_device.h"

namespace gradwire::compress {

/// Where the parts of a payload of blocks lie. Blocks are powers of two: a device divides by shifting.
struct BlockLayout {
  block::Code code;
  unsigned block_bits;
  std::size_t elements;
  std::size_t codes_begin;

  BlockLayout(block::Code code_of_all, std::size_t block, std::size_t element_count) noexcept
      : code(code_of_all),
        block_bits(static_cast<unsigned>(std::countr_zero(block))),
        elements(element_count),
        codes_begin(block::scale_count(element_count, block) * block::scale_bytes(code_of_all)) {}

  GRADWIRE_HOST_DEVICE std::size_t block() const noexcept { return std::size_t{1} << block_bits; }
  /// Where the elements of block number `i` end.
  GRADWIRE_HOST_DEVICE std::size_t end_of(std::size_t i) const noexcept {
    const std::size_t end = (i + 1) << block_bits;
    return end < elements ? end : elements;
  }
  GRADWIRE_HOST_DEVICE std::size_t scale_offset(std::size_t i) const noexcept {
    return (i >> block_bits) * block::scale_bytes(code);
  }
  GRADWIRE_HOST_DEVICE std::size_t code_offset(std::size_t i) const noexcept {
    return codes_begin + block::code_bytes(code, i);
  }
};

GRADWIRE_HOST_DEVICE inline float load_aligned_scale(block::Code code, const std::byte* from) noexcept {
  if (block::scale_bytes(code) == 4) return load_aligned<float>(from);
  return dense::float_from_bf16(load_aligned<std::uint16_t>(from));
}

GRADWIRE_HOST_DEVICE inline void store_aligned_scale(block::Code code, float scale, std::byte* to) noexcept {
  if (block::scale_bytes(code) == 4) return store_aligned(scale, to);
  store_aligned(dense::bf16_from_float(scale), to);
}

/// The codes of an item, the first in the lowest bits. Full items move as one word.
GRADWIRE_HOST_DEVICE inline std::uint32_t load_codes(block::Code code, const std::byte* from,
                                                     std::size_t count) noexcept {
  if (count == kItemElements && block::code_bits(code) == 8) return load_aligned<std::uint32_t>(from);
  if (count == kItemElements && block::code_bits(code) == 4) return load_aligned<std::uint16_t>(from);
  std::uint32_t word = 0;
  // The last item of a payload: a word would read beyond it.
  for (std::size_t b = 0; b < block::code_bytes(code, count); ++b)
    word |= std::to_integer<std::uint32_t>(from[b]) << (8 * b);
  return word;
}

GRADWIRE_HOST_DEVICE inline void store_codes(block::Code code, std::uint32_t word, std::size_t count,
                                             std::byte* to) noexcept {
  if (count == kItemElements && block::code_bits(code) == 8) return store_aligned(word, to);
  if (count == kItemElements && block::code_bits(code) == 4)
    return store_aligned(static_cast<std::uint16_t>(word), to);
  for (std::size_t b = 0; b < block::code_bytes(code, count); ++b)
    to[b] = static_cast<std::byte>(word >> (8 * b));
}

/// code * scale of each payload, added in rank order.
struct BlockSumSource {
  PayloadBlock payloads;
  BlockLayout layout;

  GRADWIRE_HOST_DEVICE Four payload_four(std::size_t way, std::size_t first,
                                         std::size_t count) const noexcept {
    const std::byte* const payload = payloads.at(way);
    const float scale = load_aligned_scale(layout.code, payload + layout.scale_offset(first));
    const std::uint32_t codes = load_codes(layout.code, payload + layout.code_offset(first), count);
    const std::size_t width = block::code_bits(layout.code);
    Four values;
    for (std::size_t j = 0; j < kItemElements; ++j) {
      const auto bits = static_cast<std::uint8_t>(codes >> (j * width) & ((1u << width) - 1));
      // Two roundings, product and sum, as on a CPU: nvcc gets --fmad=false.
      values.x[j] = block::value_of(layout.code, bits) * scale;
    }
    return values;
  }
  GRADWIRE_HOST_DEVICE Four four(std::size_t first, std::size_t count) const noexcept {
    return sum_of_payloads(*this, first, count);
  }
};

}  // namespace gradwire::compress
