// Floats of 8 bits (e4m3 or e5m2) with error feedback, scaled by the largest element of each block.
//
// Threading: all functions are pure.
#pragma once

#include <memory>
#include <span>

#include "compress/payload/codec_entry.h"

namespace gradwire::compress {

std::span<const ParameterInfo> fp8_parameters() noexcept;
std::unique_ptr<Codec> make_fp8(const CodecSpec& spec);
std::unique_ptr<Codec> fp8_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
