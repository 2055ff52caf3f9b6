// The twin of BlockCodec, rounding to nearest, on any Thrust backend: int8, int4, nf2, nf4 and fp8.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <bit>
#include <memory>
#include <utility>

#include "compress/block/block_codec.h"
#include "compress/block/block_scalar.h"
#include "compress/dense/dense_scalar.h"
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

/// What an item adds up of a block: its largest |x|.
struct LargestPart {
  float most = 0;
  GRADWIRE_HOST_DEVICE void add(std::size_t, float x) { most = magnitude(x) > most ? magnitude(x) : most; }
  GRADWIRE_HOST_DEVICE void add(const LargestPart& other) { most = other.most > most ? other.most : most; }
};

/// The same, and the sum of |x|.
struct SumPart {
  LargestPart largest;
  FourLanes sizes;
  GRADWIRE_HOST_DEVICE void add(std::size_t j, float x) {
    largest.add(j, x);
    sizes.add(j, magnitude(x));
  }
  GRADWIRE_HOST_DEVICE void add(const SumPart& other) {
    largest.add(other.largest);
    sizes.add(other.sizes);
  }
  GRADWIRE_HOST_DEVICE block::BlockSum total() const { return {largest.most, sizes.sum()}; }
};

/// What an item adds up of the elements above a limit.
struct LargePart {
  std::uint32_t count = 0;
  FourLanes sizes;
  GRADWIRE_HOST_DEVICE void add(std::size_t j, float x, float limit) {
    if (magnitude(x) <= limit) return;
    ++count;
    sizes.add(j, magnitude(x));
  }
  GRADWIRE_HOST_DEVICE void add(const LargePart& other) {
    count += other.count;
    sizes.add(other.sizes);
  }
  GRADWIRE_HOST_DEVICE block::LargeSum total() const { return {count, sizes.sum()}; }
};

/// Calls take(j, x) with what each element of an item sends. Returns true when one was not finite.
template <typename Take>
GRADWIRE_HOST_DEVICE bool for_each_sent(block::Code code, const Residual& residual, const ItemInput& input,
                                        const Take& take) {
  bool nonfinite = false;
  for (std::size_t j = 0; j < kItemElements; ++j) {
    if (j >= input.count) continue;
    const float x = residual.add(input.kept.x[j], input.values.x[j]);
    nonfinite |= !is_finite(x);
    take(j, block::to_send(code, x, input.kept.x[j]));
  }
  return nonfinite;
}

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
    const std::size_t length = layout.end_of(item) - begin;
    store_aligned_scale(layout.code,
                        block::scales_by_sums(layout.code) ? by_sums(begin, length) : by_most(begin, length),
                        out + layout.scale_offset(begin));
  }

 private:
  GRADWIRE_HOST_DEVICE float by_most(std::size_t begin, std::size_t length) const {
    LargestPart part;
    for_each_item(begin, length, [&](std::size_t, std::size_t j, float x) { part.add(j, x); });
    return block::scale_of(layout.code, part.most);
  }
  GRADWIRE_HOST_DEVICE float by_sums(std::size_t begin, std::size_t length) const {
    // One item plays the parts of a group, so that the sum has the written order of lanes.
    SumPart parts[kGroupItems];
    for_each_item(begin, length, [&](std::size_t i, std::size_t j, float x) { parts[i].add(j, x); });
    add_up(parts);
    const block::BlockSum block = parts[0].total();
    const float limit = block::limit_of(block, length);
    LargePart large[kGroupItems];
    for_each_item(begin, length, [&](std::size_t i, std::size_t j, float x) { large[i].add(j, x, limit); });
    add_up(large);
    return block::scale_of(block, large[0].total(), length);
  }
  /// Calls take(item of a group, place in the item, x) for each element of the block.
  template <typename Take>
  GRADWIRE_HOST_DEVICE void for_each_item(std::size_t begin, std::size_t length, const Take& take) const {
    bool nonfinite = false;
    for (std::size_t at = 0; at < length; at += kItemElements) {
      const ItemInput input = read_item(source, residual, begin + at, begin + length);
      nonfinite |= for_each_sent(layout.code, residual, input, [&](std::size_t j, float x) {
        // Where this element lies if a group holds the block: item, and lane of the item.
        take(at / kItemElements % kGroupItems, j, x);
      });
    }
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
    if (j >= input.count) continue;
    const float sum = residual.add(input.kept.x[j], input.values.x[j]);
    const float x = block::to_send(layout.code, sum, input.kept.x[j]);
    const std::uint8_t bits = block::code_of(layout.code, x * inverse);
    codes |= std::uint32_t{bits} << (j * block::code_bits(layout.code));
    // An element that is not finite leaves its residual, as block::encode_block_scalar() has it.
    if (is_finite(sum) || !block::has_zero(layout.code))
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
    const float scale = load_aligned_scale(layout.code, out + layout.scale_offset(first));
    encode_four(layout, residual, first, scale, read_item(source, residual, first, layout.elements), out);
  }
};

/// Encodes a block that a group of items holds at once: each float is read once.
template <typename Source, typename BlockPart>
struct HeldBlock {
  static constexpr std::size_t kRow = kGroupItems * kItemElements;
  static constexpr std::size_t kMostRows = 4;

  using Part = BlockPart;
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
    // A constant number of rows, unrolled, keeps them in registers. Rows beyond a smaller block read as
    // nothing.
    GRADWIRE_UNROLL
    for (std::size_t row = 0; row < kMostRows; ++row) {
      held.rows[row] = read_item(source, residual, first_of(group, item, row), layout.end_of(group));
    }
    Part part;
    const bool nonfinite = for_each_held(held, [&](std::size_t j, float x) { part.add(j, x); });
    if (nonfinite) report_value(report->nonfinite, 1);
    return part;
  }

 protected:
  template <typename Take>
  GRADWIRE_HOST_DEVICE bool for_each_held(const Held& held, const Take& take) const {
    bool nonfinite = false;
    GRADWIRE_UNROLL
    for (std::size_t row = 0; row < kMostRows; ++row) {
      nonfinite |= for_each_sent(layout.code, residual, held.rows[row], take);
    }
    return nonfinite;
  }
  GRADWIRE_HOST_DEVICE void encode(std::size_t group, std::size_t item, const Held& held, float scale) const {
    // All items have computed the same scale. One writes it.
    if (item == 0) store_aligned_scale(layout.code, scale, out + layout.scale_offset(group * layout.block()));
    GRADWIRE_UNROLL
    for (std::size_t row = 0; row < kMostRows; ++row) {
      if (held.rows[row].count == 0) continue;
      encode_four(layout, residual, first_of(group, item, row), scale, held.rows[row], out);
    }
  }
  GRADWIRE_HOST_DEVICE std::size_t length_of(std::size_t group) const {
    return layout.end_of(group) - group * layout.block();
  }

 private:
  GRADWIRE_HOST_DEVICE std::size_t first_of(std::size_t group, std::size_t item, std::size_t row) const {
    return group * layout.block() + row * kRow + item * kItemElements;
  }
};

/// With a scale by the largest |x|.
template <typename Source>
struct EncodeByMost : HeldBlock<Source, LargestPart> {
  using Held = typename HeldBlock<Source, LargestPart>::Held;

  GRADWIRE_HOST_DEVICE void end(std::size_t group, std::size_t item, const Held& held,
                                const LargestPart& largest) const {
    this->encode(group, item, held, block::scale_of(this->layout.code, largest.most));
  }
};

/// With a scale by sums.
template <typename Source>
struct EncodeBySums : HeldBlock<Source, SumPart> {
  struct Held : HeldBlock<Source, SumPart>::Held {
    SumPart block;
  };
  using Refined = LargePart;

  GRADWIRE_HOST_DEVICE LargePart refine(std::size_t group, std::size_t, Held& held,
                                        const SumPart& sum) const {
    // Both sums are needed for the scale, and the second one replaces what the fold holds.
    held.block = sum;
    const float limit = block::limit_of(sum.total(), this->length_of(group));
    LargePart part;
    this->for_each_held(held, [&](std::size_t j, float x) { part.add(j, x, limit); });
    return part;
  }
  GRADWIRE_HOST_DEVICE void end(std::size_t group, std::size_t item, const Held& held,
                                const LargePart& large) const {
    const float scale = block::scale_of(held.block.total(), large.total(), this->length_of(group));
    this->encode(group, item, held, scale);
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
    const Residual kept(residual);
    const std::size_t blocks = block::scale_count(elements, block);
    // Two kernels: every item of the second needs the scale of its whole block.
    if (!HeldBlock<Source, SumPart>::holds(block)) {
      backend.each(blocks, ScaleBlock<Source>{source, layout, kept, out, work.report});
      backend.each(item_count(elements), EncodeBlockItem<Source>{source, layout, kept, out});
    } else if (block::scales_by_sums(code)) {
      backend.fold(blocks, EncodeBySums<Source>{{source, layout, kept, out, work.report}});
    } else {
      backend.fold(blocks, EncodeByMost<Source>{{source, layout, kept, out, work.report}});
    }
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

/// Makes the twin of int8, int4, nf2, nf4 or fp8.
template <typename Backend>
std::unique_ptr<DeviceCodec> make_block_twin(std::unique_ptr<Codec> codec) {
  std::unique_ptr<BlockCodec> blocks(static_cast<BlockCodec*>(codec.release()));
  const BlockTwinForm form{blocks->form().code, blocks->form().block};
  return std::make_unique<FloatSumDeviceCodec<Backend, BlockTwinForm>>(std::move(blocks), form);
}

}  // namespace gradwire::compress
