// The floats themselves: what a job without compression sends.
//
// Threading: all functions are pure.
#pragma once

#include <memory>
#include <span>

#include "compress/payload/codec_entry.h"

namespace gradwire::compress {

std::span<const ParameterInfo> none_parameters() noexcept;
std::unique_ptr<Codec> make_none(const CodecSpec& spec);
std::unique_ptr<Codec> none_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
