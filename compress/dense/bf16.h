// bfloat16 with error feedback: a float's range, 7 bits of fraction.
//
// Threading: all functions are pure.
#pragma once

#include <memory>
#include <span>

#include "compress/payload/codec_entry.h"

namespace gradwire::compress {

std::span<const ParameterInfo> bf16_parameters() noexcept;
std::unique_ptr<Codec> make_bf16(const CodecSpec& spec);
std::unique_ptr<Codec> bf16_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
