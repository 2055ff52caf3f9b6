// The twin of BlockCodec on any Thrust backend: int8, int4, nf2, nf4, fp8 and qsgd.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <memory>
#include <type_traits>
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
    if constexpr (kIsGradient<Source>) {
      if (holds()) return encode_blocks<true>(backend, source, residual, elements, position, out, work);
    }
    // Of payloads, which are small, a sum is made anew each time: held sums need more registers than there
    // are.
    encode_blocks<false>(backend, source, residual, elements, position, out, work);
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
  template <typename Source>
  static constexpr bool kIsGradient = std::is_same_v<Source, FloatSource>;

  /// Whether the items of a group hold a block.
  bool holds() const {
    using Blocks = EncodeByMost<FloatSource, ToNearest, true>;
    return form.block % Blocks::kRow == 0 && form.block / Blocks::kRow <= Blocks::kMostRows;
  }

  template <bool kHolds, typename Backend, typename Source>
  void encode_blocks(Backend& backend, const Source& source, std::span<float> residual, std::size_t elements,
                     const Position* position, std::byte* out, const DeviceWork& work) const {
    const BlockLayout layout{form.code, form.block, elements};
    const Residual kept(residual);
    const std::size_t blocks = block::scale_count(elements, form.block);
    // A server, which encodes sums, draws nothing.
    if constexpr (kIsGradient<Source>) {
      if (form.seed && position != nullptr) {
        const ByChance by_chance{{*form.seed, *position}};
        backend.fold(blocks, EncodeByMost<Source, ByChance, kHolds>{
                                 {source, layout, kept, by_chance, out, work.report}});
        return;
      }
    }
    if (block::scales_by_sums(form.code)) {
      backend.fold(blocks, EncodeBySums<Source, kHolds>{{source, layout, kept, {}, out, work.report}});
    } else {
      backend.fold(blocks,
                   EncodeByMost<Source, ToNearest, kHolds>{{source, layout, kept, {}, out, work.report}});
    }
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
