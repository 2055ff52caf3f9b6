// The codec of int8, int4, fp8, nf2, nf4 and qsgd: every element is sent in a few bits, times a scale that a
// block of elements shares. Payload: the blocks' scales, then the codes.
//
// Threading and lifetime: as Codec.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "compress/block/block_scalar.h"
#include "compress/dense/float_sum_codec.h"
#include "compress/payload/bf16_residuals.h"
#include "compress/payload/codec_entry.h"

namespace gradwire::compress {

/// What elements become.
struct BlockForm {
  block::Code code = block::Code::kInt8;
  std::size_t block = 256;
  std::optional<std::uint32_t> seed;  ///< a worker rounds integers by chance, drawn with this, not to nearest
};

class BlockCodec final : public FloatSumCodec, public Bf16Residuals {
 public:
  /// name must outlive the codec; parameters and wire say what made it. Requires form.block a power of two in
  /// [block::kLeastBlock, block::kMostBlock], with a seed at least Dither::kGroup.
  BlockCodec(std::string_view name, WireId wire_id, BlockForm form, std::vector<Parameter> parameters,
             WireParameters wire)
      : FloatSumCodec(name, wire_id, block::kMostBlock),
        form_(form),
        parameters_(std::move(parameters)),
        wire_(wire) {}

  WireParameters wire_parameters() const noexcept override { return wire_; }
  CodecSpec spec() const override { return {std::string(name()), parameters_}; }
  std::size_t max_encoded_size(std::size_t elements) const noexcept override;
  const BlockForm& form() const noexcept { return form_; }
  const Bf16Residuals* bf16_residuals() const noexcept override { return this; }
  Encoded encode_bf16(std::span<const float> grad, std::span<std::byte> residual, std::span<std::byte> out,
                      const Position& position) const override;

 private:
  bool encode_run(const float* grad, float* residual, const Run& run, const Position* position,
                  std::byte* out) const override;
  void decode_run(Payload payload, const Run& run, bool add, float* out) const override;
  std::string fault(Payload payload, std::size_t elements) const override;

  /// What rounds by chance there; nothing: to nearest. position is null where Server encodes a sum.
  std::optional<Dither> dither_at(const Position* position) const;
  /// Bytes before the scale and before the code of element i, a multiple of the block.
  std::size_t scale_offset(std::size_t i) const noexcept {
    return i / form_.block * block::scale_bytes(form_.code);
  }
  std::size_t code_offset(std::size_t i, std::size_t elements) const noexcept;

  BlockForm form_;
  std::vector<Parameter> parameters_;
  WireParameters wire_;
};

}  // namespace gradwire::compress
