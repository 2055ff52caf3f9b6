// The twin of BlockCodec on any Thrust backend: int8, int4, nf2, nf4, fp8 and qsgd.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <memory>
#include <utility>

#include "compress/block/block_codec.h"
#include "compress/device/block_items_thrust.h"
#include "compress/device/float_sum_thrust.h"

namespace gradwire::compress {

struct BlockTwinForm {
  BlockForm form;

  static constexpr std::size_t scratch_bytes(std::size_t) { return 0; }

  template <typename Backend, typename Source>
  void encode(Backend& backend, const Source& source, std::span<float> residual, std::size_t elements,
              const Position* position, std::byte* out, const DeviceWork& work) const {
    if (form.seed && position != nullptr) {
      const ByChance by_chance{{*form.seed, *position}};
      encode_as(backend, source, residual, elements, by_chance, out, work);
    } else if (block::scales_by_sums(form.code) && holds()) {
      const BlockLayout layout{form.code, form.block, elements};
      backend.fold(block::scale_count(elements, form.block),
                   EncodeBySums<Source>{{source, layout, Residual(residual), {}, out, work.report}});
    } else {
      encode_as(backend, source, residual, elements, ToNearest{}, out, work);
    }
  }

  template <typename Backend>
  BlockSumSource sum(Backend&, const PayloadBlock& payloads, std::size_t elements, const DeviceWork&) const {
    return {payloads, {form.code, form.block, elements}};
  }

  template <typename Backend>
  void decode(Backend& backend, const PayloadBlock& payloads, float factor, std::span<float> out) const {
    decode_items(backend, BlockSumSource{payloads, {form.code, form.block, out.size()}}, factor, out);
  }

 private:
  /// Whether a group of items holds a block.
  bool holds() const { return HeldBlock<FloatSource, SumPart, ToNearest>::holds(form.block); }

  template <typename Backend, typename Source, typename Rounding>
  void encode_as(Backend& backend, const Source& source, std::span<float> residual, std::size_t elements,
                 const Rounding& rounding, std::byte* out, const DeviceWork& work) const {
    const BlockLayout layout{form.code, form.block, elements};
    const Residual kept(residual);
    const std::size_t blocks = block::scale_count(elements, form.block);
    if (holds()) {
      backend.fold(blocks,
                   EncodeByMost<Source, Rounding>{{source, layout, kept, rounding, out, work.report}});
      return;
    }
    // Two kernels: every item of the second needs the scale of its whole block, by sums or not.
    backend.each(blocks, ScaleBlock<Source>{source, layout, kept, out, work.report});
    backend.each(item_count(elements),
                 EncodeBlockItem<Source, Rounding>{source, layout, kept, rounding, out});
  }
};

/// Makes the twin of int8, int4, nf2, nf4, fp8 or qsgd.
template <typename Backend>
std::unique_ptr<DeviceCodec> make_block_twin(std::unique_ptr<Codec> codec) {
  std::unique_ptr<BlockCodec> blocks(static_cast<BlockCodec*>(codec.release()));
  const BlockTwinForm form{blocks->form()};
  return std::make_unique<FloatSumDeviceCodec<Backend, BlockTwinForm>>(std::move(blocks), form);
}

}  // namespace gradwire::compress
