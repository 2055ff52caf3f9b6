// Random elements of each codec unit, the same on all ranks in a round, with error feedback. No index
// travels: the payload names its round, and the reader draws the same elements. So sums stay as short as a
// payload.
//
// Payload: u64 step, u32 key, u32 first unit, then unit by unit the values, in the order drawn.
//
// Threading and lifetime: as Codec. A thread that encodes keeps the memory for one codec unit.
#pragma once

#include <memory>
#include <span>

#include "compress/dense/dense_scalar.h"
#include "compress/dense/float_sum_codec.h"
#include "compress/payload/codec_entry.h"
#include "compress/sparse/random_selection.h"

namespace gradwire::compress {

class RandomK final : public FloatSumCodec {
 public:
  /// Requires ratio in (0, 1] and a format of values other than kF32Finite.
  RandomK(float ratio, std::uint32_t seed, dense::Format values) noexcept;

  WireParameters wire_parameters() const noexcept override;
  CodecSpec spec() const override;
  std::size_t max_encoded_size(std::size_t elements) const noexcept override;
  std::size_t max_reply_size(std::size_t elements, std::size_t ways, ReplyKind kind) const noexcept override;
  Encoded encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                       std::span<float> residual, std::span<std::byte> out) const override;
  void decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                    std::span<UnitScale> next) const override;

 private:
  bool encode_run(const float* grad, float* residual, const Run& run, const Position* position,
                  std::byte* out) const override;
  void decode_run(Payload payload, const Run& run, bool add, float* out) const override;
  std::string fault(Payload, std::size_t) const override { return {}; }

  bool encode_unit(const float* grad, float* residual, std::size_t elements,
                   std::span<const std::uint32_t> drawn, std::byte* out) const;
  /// The elements that a payload's header names for the unit that begins at `first`, in this thread's memory.
  std::span<const std::uint32_t> drawn(const std::byte* header, std::size_t first,
                                       std::size_t elements) const;
  std::size_t value_count(std::size_t elements) const noexcept;

  float ratio_;
  std::uint32_t seed_;
  dense::Format values_;
};

std::span<const ParameterInfo> random_k_parameters() noexcept;
std::unique_ptr<Codec> make_random_k(const CodecSpec& spec);
std::unique_ptr<Codec> random_k_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
