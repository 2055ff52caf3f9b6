// Bf16Residuals is what a codec offers that can keep a residual in bfloat16 within its own pass: half the
// memory to read and write for it. ErrorFeedback asks for it; other codecs' residuals it widens and rounds in
// passes of their own.
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
  /// widening it, encode() and rounding it. For codecs that agree no scales and draw nothing.
  virtual Encoded encode_bf16(std::span<const float> grad, std::span<std::byte> residual,
                              std::span<std::byte> out) const = 0;

 protected:
  ~Bf16Residuals() = default;
};

}  // namespace gradwire::compress
