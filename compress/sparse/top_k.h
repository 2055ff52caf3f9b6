// The largest elements of each codec unit, exactly, with error feedback: everything else is kept.
//
// Payload: unit by unit, the indices of the elements that are sent, ascending, 16 bits each, then their
// values.
//
// Threading and lifetime: as Codec. A thread that encodes keeps the memory for one codec unit.
#pragma once

#include <memory>
#include <span>

#include "compress/dense/dense_scalar.h"
#include "compress/dense/float_sum_codec.h"
#include "compress/payload/codec_entry.h"

namespace gradwire::compress {

class TopK final : public FloatSumCodec {
 public:
  /// Requires ratio in (0, 1] and a format of values other than kF32Finite.
  TopK(float ratio, dense::Format values) noexcept;

  WireParameters wire_parameters() const noexcept override;
  CodecSpec spec() const override;
  std::size_t max_encoded_size(std::size_t elements) const noexcept override;
  float ratio() const noexcept { return ratio_; }
  dense::Format values() const noexcept { return values_; }

 private:
  bool encode_run(const float* grad, float* residual, const Run& run, const Position* position,
                  std::byte* out) const override;
  void decode_run(Payload payload, const Run& run, bool add, float* out) const override;
  std::string fault(Payload payload, std::size_t elements) const override;

  bool encode_unit(const float* grad, float* residual, std::size_t elements, std::byte* out) const;
  std::size_t unit_bytes(std::size_t elements) const noexcept;

  float ratio_;
  dense::Format values_;
};

std::span<const ParameterInfo> top_k_parameters() noexcept;
std::unique_ptr<Codec> make_top_k(const CodecSpec& spec);
std::unique_ptr<Codec> top_k_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
