// The codec of int8, int4 and fp8: every element is sent in a few bits, scaled by one float32 that a
// block of elements shares. Payload: the blocks' scales, then the codes.
//
// Threading and lifetime: as Codec.
#pragma once

#include "compress/block_scalar.h"
#include "compress/codecs.h"
#include "compress/float_sum_codec.h"

namespace gradwire::compress {

class BlockCodec final : public FloatSumCodec {
 public:
  /// name must outlive the codec. Requires block a power of two in [block::kLeastBlock, block::kMostBlock].
  BlockCodec(std::string_view name, WireId wire_id, block::Code code, std::size_t block) noexcept
      : FloatSumCodec(name, wire_id, block::kMostBlock), code_(code), block_(block) {}

  WireParameters wire_parameters() const noexcept override;
  CodecSpec spec() const override;
  std::size_t max_encoded_size(std::size_t elements) const noexcept override;

 private:
  bool encode_run(const float* grad, float* residual, const Run& run, const Position* position,
                  std::byte* out) const override;
  void decode_run(Payload payload, const Run& run, bool add, float* out) const override;
  std::string fault(Payload payload, std::size_t elements) const override;

  /// Bytes before the scale and before the code of element i, a multiple of the block.
  std::size_t scale_offset(std::size_t i) const noexcept { return i / block_ * sizeof(float); }
  std::size_t code_offset(std::size_t i, std::size_t elements) const noexcept;

  block::Code code_;
  std::size_t block_;
};

}  // namespace gradwire::compress
