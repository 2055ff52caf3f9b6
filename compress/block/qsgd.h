// QSGD: integers of 4 or 8 bits with a scale per bucket, rounded up or down at random, so that their mean is
// the gradient.
//
// Source: Alistarh, Grubic, Li, Tomioka and Vojnovic 2017, "QSGD: communication-efficient SGD via gradient
// quantization and encoding", section 3.1 for the rounding, section 4 for buckets scaled by their maximum.
// Deviations: fixed widths in place of Elias codes; a residual, if the caller keeps one.
//
// Threading: all functions are pure.
#pragma once

#include <memory>
#include <span>

#include "compress/payload/codec_entry.h"

namespace gradwire::compress {

std::span<const ParameterInfo> qsgd_parameters() noexcept;
std::unique_ptr<Codec> make_qsgd(const CodecSpec& spec);
std::unique_ptr<Codec> qsgd_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
