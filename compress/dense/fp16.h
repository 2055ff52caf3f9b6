// IEEE half precision with error feedback: 10 bits of fraction, +-65504.
//
// Threading: all functions are pure.
#pragma once

#include <memory>
#include <span>

#include "compress/payload/codec_entry.h"

namespace gradwire::compress {

std::span<const ParameterInfo> fp16_parameters() noexcept;
std::unique_ptr<Codec> make_fp16(const CodecSpec& spec);
std::unique_ptr<Codec> fp16_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
