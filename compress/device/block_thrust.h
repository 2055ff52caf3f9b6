// The twin of BlockCodec, rounding to nearest, on any Thrust backend: int8, int4, nf2, nf4 and fp8.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <memory>
#include <utility>

#include "compress/block/block_codec.h"
#include "compress/block/block_scalar.h"
#include "compress/device/block_payload_thrust.h"
#include "compress/device/block_scales_thrust.h"
#include "compress/device/float_sum_thrust.h"

namespace gradwire::compress {

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
