// The codec none for float64 tensors: every element in its own 64 bits, sums in float64. The dtype of a
// frame selects it, not another codec: a user asks for "none".
//
// Threading and lifetime: as Codec.
#pragma once

#include "compress/codec.h"

namespace gradwire::compress {

class Float64Codec final : public Codec {
 public:
  std::string_view name() const noexcept override { return "none"; }
  WireId wire_id() const noexcept override { return WireId::kNone; }
  WireParameters wire_parameters() const noexcept override { return {}; }
  CodecSpec spec() const override { return {"none", {}}; }
  bool lossy() const noexcept override { return false; }
  bool has_exact_reply() const noexcept override { return false; }
  bool agrees_scales() const noexcept override { return false; }
  bool concatenates() const noexcept override { return true; }
  const Float64Codec* as_float64() const noexcept override { return this; }

  std::size_t max_encoded_size(std::size_t elements) const noexcept override {
    return elements * sizeof(double);
  }
  std::size_t max_reply_size(std::size_t elements, std::size_t ways, ReplyKind kind) const noexcept override;

  // Codec's own, of float32: widened on the way in; sums are rounded once, on the way out.

  Encoded encode(std::span<const float> grad, std::span<float> residual, std::span<const UnitScale> scales,
                 std::span<std::byte> out, const Position& position) const override;
  void decode_sum(std::span<const Payload> payloads, std::span<float> out) const override;
  void validate(Payload payload, std::size_t elements) const override;
  Encoded encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                       std::span<float> residual, std::span<std::byte> out) const override;
  void decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                    std::span<UnitScale> next) const override;

  /// Decodes an answer, times scale. Throws DecodeError as decode_reply() does.
  void decode_reply(Payload reply, ReplyKind kind, double scale, std::span<double> out) const;
};

}  // namespace gradwire::compress
