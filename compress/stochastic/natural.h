// Natural compression: every element becomes a power of two, the upper or the lower neighbour at random, so
// that the mean is the gradient. 9 bits: sign and exponent, a float without its fraction.
//
// Source: Horvath, Ho, Horvath, Sahu, Canini and Richtarik 2019, "Natural compression for distributed deep
// learning", section 2. It adds at most an eighth to the second moment (theorem 1). Deviation: a residual,
// if the caller keeps one.
//
// Threading and lifetime: as Codec.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "compress/dense/float_sum_codec.h"
#include "compress/payload/codec_entry.h"

namespace gradwire::compress {

/// Payload: a byte an element, its exponent as float32 has it, then a bit an element, its sign.
class Natural final : public FloatSumCodec {
 public:
  explicit Natural(std::uint32_t seed) noexcept;

  WireParameters wire_parameters() const noexcept override { return {seed_, 0, 0, 0}; }
  CodecSpec spec() const override;
  std::size_t max_encoded_size(std::size_t elements) const noexcept override;

 private:
  bool encode_run(const float* grad, float* residual, const Run& run, const Position* position,
                  std::byte* out) const override;
  void decode_run(Payload payload, const Run& run, bool add, float* out) const override;
  std::string fault(Payload payload, std::size_t elements) const override;

  std::uint32_t seed_;
};

std::span<const ParameterInfo> natural_parameters() noexcept;
std::unique_ptr<Codec> make_natural(const CodecSpec& spec);
std::unique_ptr<Codec> natural_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
