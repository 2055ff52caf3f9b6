// Two bits per element: +level, -level or nothing; the residual keeps the rest for later rounds.
//
// TwoBitFixed has MXNet's rule and MXNet's bytes: one threshold, which is also the level. threshold=auto
// makes a TwoBitAuto (two_bit_auto.h).
//
// Threading and lifetime: as Codec.
#pragma once

#include <memory>
#include <span>

#include "compress/codec.h"
#include "compress/payload/bf16_residuals.h"
#include "compress/payload/codec_entry.h"
#include "compress/payload/integer_sums.h"
#include "compress/two_bit/two_bit_scalar.h"

namespace gradwire::compress {

class TwoBitFixed final : public Codec, public IntegerSums, public Bf16Residuals {
 public:
  /// Requires threshold finite and above 0.
  TwoBitFixed(float threshold, two_bit::NonFinite nonfinite, two_bit::Stage stage) noexcept
      : threshold_(threshold), nonfinite_(nonfinite), stage_(stage) {}

  std::string_view name() const noexcept override { return "2bit"; }
  WireId wire_id() const noexcept override { return WireId::kTwoBit; }
  WireParameters wire_parameters() const noexcept override;
  CodecSpec spec() const override;
  bool lossy() const noexcept override { return true; }
  bool has_exact_reply() const noexcept override { return true; }
  bool agrees_scales() const noexcept override { return false; }
  bool wants_lossless_stage() const noexcept override { return stage_ == two_bit::Stage::kLossless; }
  const IntegerSums* integer_sums() const noexcept override { return this; }
  const Bf16Residuals* bf16_residuals() const noexcept override {
    return nonfinite_ == two_bit::NonFinite::kSkip ? this : nullptr;
  }

  std::size_t max_encoded_size(std::size_t elements) const noexcept override;
  Encoded encode(std::span<const float> grad, std::span<float> residual, std::span<const UnitScale> scales,
                 std::span<std::byte> out, const Position& position) const override;
  /// Requires nonfinite=skip.
  Encoded encode_bf16(std::span<const float> grad, std::span<std::byte> residual, std::span<std::byte> out,
                      const Position& position) const override;
  void decode_sum(std::span<const Payload> payloads, std::span<float> out) const override;
  void validate(Payload payload, std::size_t elements) const override;
  std::size_t max_reply_size(std::size_t elements, std::size_t ways, ReplyKind kind) const noexcept override;
  Encoded encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                       std::span<float> residual, std::span<std::byte> out) const override;
  void decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                    std::span<UnitScale> next) const override;

  std::size_t code_bits() const noexcept override { return two_bit::kCodeBits; }
  std::size_t head_bytes(std::size_t) const noexcept override { return 0; }
  bool holds_codes(Payload) const noexcept override { return true; }
  void write_head(Payload, std::size_t, std::span<std::byte>) const override {}
  void expand(Payload payload, std::size_t elements, IntegerWidth width,
              std::span<std::byte> out) const override;
  void decode_sum(const SummedRound& round, std::span<float> out) const override;
  Encoded encode_reply(const SummedRound& round, std::size_t elements, ReplyKind kind,
                       std::span<float> residual, std::span<std::byte> out) const override;

 private:
  // Sums are the codes of payloads, or integers that a library has added.
  template <typename Sums>
  Encoded reply(const Sums& sums, std::size_t elements, std::size_t ways, ReplyKind kind,
                std::span<float> residual, std::span<std::byte> out) const;
  template <typename Sums>
  Encoded requantise(const Sums& sums, std::size_t elements, std::size_t ways, float* residual,
                     std::byte* out) const;

  float threshold_;
  two_bit::NonFinite nonfinite_;
  two_bit::Stage stage_;
};

std::span<const ParameterInfo> two_bit_parameters() noexcept;
std::unique_ptr<Codec> make_two_bit(const CodecSpec& spec);
std::unique_ptr<Codec> two_bit_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
