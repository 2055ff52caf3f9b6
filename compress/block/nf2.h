// Four levels in 2 bits with error feedback: 1 and 4 times a scale, up and down. A block has the scale that
// leaves least of it.
//
// Source of the levels: block/block_scalar.h.
//
// Threading: all functions are pure.
#pragma once

#include <memory>
#include <span>

#include "compress/payload/codec_entry.h"

namespace gradwire::compress {

std::span<const ParameterInfo> nf2_parameters() noexcept;
std::unique_ptr<Codec> make_nf2(const CodecSpec& spec);
std::unique_ptr<Codec> nf2_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
