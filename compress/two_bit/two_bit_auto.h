// The 2-bit code with agreed scales: threshold and level of each codec unit are the same on all workers and
// follow the gradients, one round behind. The first round is dense.
//
// Threading and lifetime: as Codec.
#pragma once

#include "compress/codec.h"
#include "compress/payload/integer_sums.h"
#include "compress/two_bit/two_bit_scalar.h"

namespace gradwire::compress {

class TwoBitAuto final : public Codec, public IntegerSums {
 public:
  static constexpr float kDefaultScale = 1.5f;  ///< threshold in means of |gradient + residual|
  static constexpr float kDefaultReplyScale =
      1.5f;  ///< threshold of a 2bit reply in means of |sum + residual|

  /// Requires both finite and above 0.
  TwoBitAuto(float scale, float reply_scale, two_bit::Stage stage) noexcept
      : scale_(scale), reply_scale_(reply_scale), stage_(stage) {}

  std::string_view name() const noexcept override { return "2bit"; }
  WireId wire_id() const noexcept override { return WireId::kTwoBit; }
  WireParameters wire_parameters() const noexcept override;
  CodecSpec spec() const override;
  bool lossy() const noexcept override { return true; }
  bool has_exact_reply() const noexcept override { return true; }
  bool agrees_scales() const noexcept override { return true; }
  bool wants_lossless_stage() const noexcept override { return stage_ == two_bit::Stage::kLossless; }
  const IntegerSums* integer_sums() const noexcept override { return this; }

  std::size_t max_encoded_size(std::size_t elements) const noexcept override;
  Encoded encode(std::span<const float> grad, std::span<float> residual, std::span<const UnitScale> scales,
                 std::span<std::byte> out, const Position& position) const override;
  void decode_sum(std::span<const Payload> payloads, std::span<float> out) const override;
  void validate(Payload payload, std::size_t elements) const override;
  std::size_t max_reply_size(std::size_t elements, std::size_t ways, ReplyKind kind) const noexcept override;
  Encoded encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                       std::span<float> residual, std::span<std::byte> out) const override;
  void decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                    std::span<UnitScale> next) const override;

  std::size_t code_bits() const noexcept override { return two_bit::kCodeBits; }
  std::size_t head_bytes(std::size_t elements) const noexcept override;
  bool holds_codes(Payload payload) const noexcept override;
  void write_head(Payload payload, std::size_t elements, std::span<std::byte> out) const override;
  void expand(Payload payload, std::size_t elements, IntegerWidth width,
              std::span<std::byte> out) const override;
  void decode_sum(const SummedRound& round, std::span<float> out) const override;
  Encoded encode_reply(const SummedRound& round, std::size_t elements, ReplyKind kind,
                       std::span<float> residual, std::span<std::byte> out) const override;

 private:
  struct Round;
  struct Run;

  void sum_round(const Round& round, std::span<float> out) const;
  Encoded reply(const Round& round, ReplyKind kind, std::span<float> residual,
                std::span<std::byte> out) const;
  bool encode_dense_unit(const Run& unit, const float* grad, float* residual, std::byte* header,
                         std::byte* body) const;
  bool requantise_unit(const Round& round, const Run& unit, float level, float* residual, std::byte* header,
                       std::byte* body) const;

  float scale_;
  float reply_scale_;
  two_bit::Stage stage_;
};

}  // namespace gradwire::compress
