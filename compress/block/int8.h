// Integers of 8 bits with error feedback, scaled by the largest element of each block.
//
// Threading: all functions are pure.
#pragma once

#include <memory>
#include <span>

#include "compress/payload/codec_entry.h"

namespace gradwire::compress {

std::span<const ParameterInfo> int8_parameters() noexcept;
std::unique_ptr<Codec> make_int8(const CodecSpec& spec);
std::unique_ptr<Codec> int8_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
