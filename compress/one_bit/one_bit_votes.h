// MXNet 2.0's one bit: +1 if gradient + residual is above a threshold, else -1; the residual keeps the rest.
// Payloads are votes, so sums are integers.
//
// Replies: kExact is the number of +1 in bit planes, kSame the majority: one bit that stands for +-N, of sum
// + Server's residual. Without a residual at Server that is signSGD's majority vote, where a tie counts as
// -.
//
// Threading and lifetime: as Codec.
#pragma once

#include "compress/dense/float_sum_codec.h"

namespace gradwire::compress {

class OneBitVotes final : public FloatSumCodec {
 public:
  /// Requires threshold finite and above 0.
  explicit OneBitVotes(float threshold) noexcept;

  WireParameters wire_parameters() const noexcept override;
  CodecSpec spec() const override;
  bool has_exact_reply() const noexcept override { return true; }
  std::size_t max_encoded_size(std::size_t elements) const noexcept override;
  std::size_t max_reply_size(std::size_t elements, std::size_t ways, ReplyKind kind) const noexcept override;
  float threshold() const noexcept { return threshold_; }
  Encoded encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                       std::span<float> residual, std::span<std::byte> out) const override;
  void decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                    std::span<UnitScale> next) const override;

 private:
  bool encode_run(const float* grad, float* residual, const Run& run, const Position* position,
                  std::byte* out) const override;
  void decode_run(Payload payload, const Run& run, bool add, float* out) const override;
  std::string fault(Payload, std::size_t) const override { return {}; }
  Encoded encode_majority(std::span<const Payload> payloads, std::size_t elements, float* residual,
                          std::byte* out) const;

  float threshold_;
};

}  // namespace gradwire::compress
