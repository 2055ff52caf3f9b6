// One bit an element with error feedback: the sign, scaled by the mean of |x| in its codec unit; or, given a
// threshold, MXNet 2.0's +1 and -1 (one_bit_votes.h).
//
// Threading and lifetime: as Codec.
#pragma once

#include <memory>
#include <span>

#include "compress/dense/float_sum_codec.h"
#include "compress/payload/codec_entry.h"

namespace gradwire::compress {

/// Payload: a float32 per codec unit, the mean of |x|, then the bits. Bit 1 stands for the mean, 0 for its
/// opposite; a word of 32 elements that are all 0 has a mark of its own, and no part in the mean.
class OneBitMean final : public FloatSumCodec {
 public:
  OneBitMean() noexcept;

  WireParameters wire_parameters() const noexcept override;
  CodecSpec spec() const override;
  std::size_t max_encoded_size(std::size_t elements) const noexcept override;

 private:
  bool encode_run(const float* grad, float* residual, const Run& run, const Position* position,
                  std::byte* out) const override;
  void decode_run(Payload payload, const Run& run, bool add, float* out) const override;
  std::string fault(Payload payload, std::size_t elements) const override;
};

std::span<const ParameterInfo> one_bit_parameters() noexcept;
std::unique_ptr<Codec> make_one_bit(const CodecSpec& spec);
std::unique_ptr<Codec> one_bit_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
