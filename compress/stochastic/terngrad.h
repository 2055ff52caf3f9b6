// TernGrad: an element is sent as +s, 0 or -s, with probability |x| / s, so that the mean is the gradient
// where nothing is clipped. Each codec unit has an s.
//
// Source: Wen, Xu, Yan, Wu, Wang, Chen and Li 2017, "TernGrad: ternary gradients to reduce communication in
// distributed deep learning", sections 3.1 and 4. Deviations: s per codec unit in place of a layer; a
// residual, if the caller keeps one, and for its sake a clip of 1.5 deviations in place of 2.5
// (compress/README.md says why); workers do not share s, so sums are not integers.
//
// Threading and lifetime: as Codec.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "compress/dense/float_sum_codec.h"
#include "compress/payload/codec_entry.h"

namespace gradwire::compress {

/// Payload: a float32 per codec unit, s, then the codes of 2bit.
class TernGrad final : public FloatSumCodec {
 public:
  /// clip: deviations that s is at most, above 0; 0 clips nothing.
  TernGrad(float clip, std::uint32_t seed) noexcept;

  WireParameters wire_parameters() const noexcept override;
  CodecSpec spec() const override;
  std::size_t max_encoded_size(std::size_t elements) const noexcept override;

 private:
  bool encode_run(const float* grad, float* residual, const Run& run, const Position* position,
                  std::byte* out) const override;
  void decode_run(Payload payload, const Run& run, bool add, float* out) const override;
  std::string fault(Payload payload, std::size_t elements) const override;

  float clip_;
  std::uint32_t seed_;
};

std::span<const ParameterInfo> terngrad_parameters() noexcept;
std::unique_ptr<Codec> make_terngrad(const CodecSpec& spec);
std::unique_ptr<Codec> terngrad_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
