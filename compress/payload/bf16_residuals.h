// Bf16Residuals is an ability of a codec that can keep a residual in bfloat16 within its own pass, which
// halves the residual's memory traffic. ErrorFeedback and a store's pushes use it. For other codecs they
// widen and round the residual in passes of their own.
//
// Threading and lifetime: as Codec.
#pragma once

#include <cstddef>
#include <span>

#include "compress/codec.h"

namespace gradwire::compress {

class Bf16Residuals {
 public:
  /// As Codec::encode() with a residual of 2 bytes an element, rounded to nearest even: the same bits as
  /// widening it, encode() and rounding it. For codecs that agree no scales.
  virtual Encoded encode_bf16(std::span<const float> grad, std::span<std::byte> residual,
                              std::span<std::byte> out, const Position& position) const = 0;

 protected:
  ~Bf16Residuals() = default;
};

}  // namespace gradwire::compress
