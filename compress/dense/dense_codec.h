// The codec of none, fp16 and bf16: every element is sent, in one fixed width.
//
// Threading and lifetime: as Codec.
#pragma once

#include "compress/codec.h"
#include "compress/dense/dense_scalar.h"
#include "compress/payload/bf16_residuals.h"

namespace gradwire::compress {

class DenseCodec final : public Codec, public Bf16Residuals {
 public:
  /// name must outlive the codec.
  DenseCodec(std::string_view name, WireId wire_id, dense::Format format) noexcept
      : name_(name), wire_id_(wire_id), format_(format) {}

  std::string_view name() const noexcept override { return name_; }
  WireId wire_id() const noexcept override { return wire_id_; }
  WireParameters wire_parameters() const noexcept override { return {}; }
  CodecSpec spec() const override;
  bool lossy() const noexcept override { return format_ != dense::Format::kF32; }
  bool has_exact_reply() const noexcept override { return false; }
  bool agrees_scales() const noexcept override { return false; }
  bool concatenates() const noexcept override { return true; }
  const Bf16Residuals* bf16_residuals() const noexcept override { return lossy() ? this : nullptr; }

  std::size_t max_encoded_size(std::size_t elements) const noexcept override;
  Encoded encode(std::span<const float> grad, std::span<float> residual, std::span<const UnitScale> scales,
                 std::span<std::byte> out, const Position& position) const override;
  Encoded encode_bf16(std::span<const float> grad, std::span<std::byte> residual, std::span<std::byte> out,
                      const Position& position) const override;
  void decode_sum(std::span<const Payload> payloads, std::span<float> out) const override;
  void validate(Payload payload, std::size_t elements) const override;
  std::size_t max_reply_size(std::size_t elements, std::size_t ways, ReplyKind kind) const noexcept override;
  Encoded encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                       std::span<float> residual, std::span<std::byte> out) const override;
  void decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                    std::span<UnitScale> next) const override;
  void decode_reply_scaled(Payload reply, std::size_t ways, ReplyKind kind, float scale, std::span<float> out,
                           std::span<UnitScale> next) const override;

 private:
  std::string_view name_;
  WireId wire_id_;
  dense::Format format_;
};

}  // namespace gradwire::compress
