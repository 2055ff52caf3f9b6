// The twin of BlockCodec, rounding to nearest, on any Thrust backend: int8, int4 and fp8.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <bit>
#include <memory>
#include <utility>

#include "compress/block/block_codec.h"
#include "compress/block/block_scalar.h"
#include "compress/device/float_sum_thrust.h"

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
        codes_begin(block::scale_count(element_count, block) * sizeof(float)) {}

  GRADWIRE_HOST_DEVICE std::size_t block() const noexcept { return std::size_t{1} << block_bits; }
  /// Where the elements of block number `i` end.
  GRADWIRE_HOST_DEVICE std::size_t end_of(std::size_t i) const noexcept {
    const std::size_t end = (i + 1) << block_bits;
    return end < elements ? end : elements;
  }
  GRADWIRE_HOST_DEVICE std::size_t scale_offset(std::size_t i) const noexcept {
    return (i >> block_bits) * sizeof(float);
  }
  GRADWIRE_HOST_DEVICE std::size_t code_offset(std::size_t i) const noexcept {
    return codes_begin + block::code_bytes(code, i);
  }
};

/// The codes of an item, the first in the lowest bits. Full items move as one word.
GRADWIRE_HOST_DEVICE inline std::uint32_t load_codes(block::Code code, const std::byte* from,
                                                     std::size_t count) noexcept {
  if (count == kItemElements && block::code_bits(code) == 8) return load_aligned<std::uint32_t>(from);
  if (count == kItemElements) return load_aligned<std::uint16_t>(from);
  std::uint32_t word = 0;
  for (std::size_t b = 0; b < block::code_bytes(code, count); ++b)
    word |= std::to_integer<std::uint32_t>(from[b]) << (8 * b);
  return word;
}

GRADWIRE_HOST_DEVICE inline void store_codes(block::Code code, std::uint32_t word, std::size_t count,
                                             std::byte* to) noexcept {
  if (count == kItemElements && block::code_bits(code) == 8) return store_aligned(word, to);
  if (count == kItemElements) return store_aligned(static_cast<std::uint16_t>(word), to);
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
    const auto scale = load_aligned<float>(payload + layout.scale_offset(first));
    const std::uint32_t codes = load_codes(layout.code, payload + layout.code_offset(first), count);
    const std::size_t width = block::code_bits(layout.code);
    Four values;
    for (std::size_t j = 0; j < kItemElements; ++j) {
      const auto bits = static_cast<std::uint8_t>(codes >> (j * width) & ((1u << width) - 1));
      values.x[j] = block::value_of(layout.code, bits) * scale;
    }
    return values;
  }
  GRADWIRE_HOST_DEVICE Four four(std::size_t first, std::size_t count) const noexcept {
    return sum_of_payloads(*this, first, count);
  }
};

/// Writes the scale of block `item`.
template <typename Source>
struct ScaleBlock {
  Source source;
  BlockLayout layout;
  Residual residual;
  std::byte* out;
  DeviceReport* report;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t begin = item * layout.block();
    const std::size_t end = layout.end_of(item);
    float most = 0;
    bool nonfinite = false;
    for (std::size_t first = begin; first < end; first += kItemElements) {
      const ItemInput input = read_item(source, residual, first, end);
      for (std::size_t j = 0; j < kItemElements; ++j) {
        if (j >= input.count) continue;
        const float x = residual.add(input.kept.x[j], input.values.x[j]);
        const bool finite = is_finite(x);
        nonfinite |= !finite;
        if (finite && magnitude(x) > most) most = magnitude(x);
      }
    }
    store_aligned(block::scale_of(layout.code, most), out + layout.scale_offset(begin));
    if (nonfinite) report_value(report->nonfinite, 1);
  }
};

/// Encodes an item of a block of this scale, as block::encode_block_scalar() does.
GRADWIRE_HOST_DEVICE inline void encode_four(const BlockLayout& layout, const Residual& residual,
                                             std::size_t first, float scale, ItemInput input,
                                             std::byte* out) {
  const float inverse = block::inverse_of(scale);
  std::uint32_t codes = 0;
  for (std::size_t j = 0; j < kItemElements; ++j) {
    const float x = residual.add(input.kept.x[j], input.values.x[j]);
    if (j >= input.count || !is_finite(x)) continue;
    const std::uint8_t bits = block::code_of(layout.code, x * inverse);
    codes |= std::uint32_t{bits} << (j * block::code_bits(layout.code));
    input.kept.x[j] = x - block::value_of(layout.code, bits) * scale;
  }
  store_codes(layout.code, codes, input.count, out + layout.code_offset(first));
  residual.store(input.kept, first, input.count);
}

/// Encodes an item whose block has its scale.
template <typename Source>
struct EncodeBlockItem {
  Source source;
  BlockLayout layout;
  Residual residual;
  std::byte* out;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item * kItemElements;
    const auto scale = load_aligned<float>(out + layout.scale_offset(first));
    encode_four(layout, residual, first, scale, read_item(source, residual, first, layout.elements), out);
  }
};

/// Encodes a block that a group of items holds at once: each float is read once.
template <typename Source>
struct EncodeHeldBlock {
  static constexpr std::size_t kRow = kGroupItems * kItemElements;
  static constexpr std::size_t kMostRows = 4;

  /// The largest |x|.
  struct Part {
    float most = 0;
    GRADWIRE_HOST_DEVICE void add(const Part& other) { most = other.most > most ? other.most : most; }
  };
  struct Held {
    ItemInput rows[kMostRows];
  };

  Source source;
  BlockLayout layout;
  Residual residual;
  std::byte* out;
  DeviceReport* report;

  /// Whether blocks of this size fit.
  static constexpr bool holds(std::size_t block) { return block % kRow == 0 && block / kRow <= kMostRows; }

  GRADWIRE_HOST_DEVICE Part begin(std::size_t group, std::size_t item, Held& held) const {
    GRADWIRE_UNROLL
    for (std::size_t row = 0; row < kMostRows; ++row) {
      held.rows[row] = read_item(source, residual, first_of(group, item, row), layout.end_of(group));
    }
    Part part;
    bool nonfinite = false;
    GRADWIRE_UNROLL
    for (std::size_t row = 0; row < kMostRows; ++row) {
      const ItemInput& input = held.rows[row];
      for (std::size_t j = 0; j < kItemElements; ++j) {
        if (j >= input.count) continue;
        const float x = residual.add(input.kept.x[j], input.values.x[j]);
        nonfinite |= !is_finite(x);
        if (is_finite(x) && magnitude(x) > part.most) part.most = magnitude(x);
      }
    }
    if (nonfinite) report_value(report->nonfinite, 1);
    return part;
  }
  GRADWIRE_HOST_DEVICE void end(std::size_t group, std::size_t item, const Held& held,
                                const Part& largest) const {
    const float scale = block::scale_of(layout.code, largest.most);
    if (item == 0) store_aligned(scale, out + layout.scale_offset(group * layout.block()));
    GRADWIRE_UNROLL
    for (std::size_t row = 0; row < kMostRows; ++row) {
      if (held.rows[row].count == 0) continue;
      encode_four(layout, residual, first_of(group, item, row), scale, held.rows[row], out);
    }
  }

 private:
  GRADWIRE_HOST_DEVICE std::size_t first_of(std::size_t group, std::size_t item, std::size_t row) const {
    return group * layout.block() + row * kRow + item * kItemElements;
  }
};

struct BlockTwinForm {
  block::Code code;
  std::size_t block;

  static constexpr std::size_t scratch_bytes(std::size_t) { return 0; }

  template <typename Backend, typename Source>
  void encode(Backend& backend, const Source& source, std::span<float> residual, std::size_t elements,
              std::byte* out, const DeviceWork& work) const {
    const BlockLayout layout{code, block, elements};
    const std::size_t blocks = block::scale_count(elements, block);
    if (EncodeHeldBlock<Source>::holds(block)) {
      backend.fold(blocks, EncodeHeldBlock<Source>{source, layout, Residual(residual), out, work.report});
      return;
    }
    backend.each(blocks, ScaleBlock<Source>{source, layout, Residual(residual), out, work.report});
    backend.each(item_count(elements), EncodeBlockItem<Source>{source, layout, Residual(residual), out});
  }

  template <typename Backend>
  BlockSumSource sum(Backend&, const PayloadBlock& payloads, std::size_t elements, const DeviceWork&) const {
    return {payloads, {code, block, elements}};
  }

  template <typename Backend>
  void decode(Backend& backend, const PayloadBlock& payloads, float factor, std::span<float> out) const {
    decode_items(backend, BlockSumSource{payloads, {code, block, out.size()}}, factor, out);
  }
};

/// Makes the twin of int8, int4 or fp8.
template <typename Backend>
std::unique_ptr<DeviceCodec> make_block_twin(std::unique_ptr<Codec> codec) {
  std::unique_ptr<BlockCodec> blocks(static_cast<BlockCodec*>(codec.release()));
  const BlockTwinForm form{blocks->form().code, blocks->form().block};
  return std::make_unique<FloatSumDeviceCodec<Backend, BlockTwinForm>>(std::move(blocks), form);
}

}  // namespace gradwire::compress
