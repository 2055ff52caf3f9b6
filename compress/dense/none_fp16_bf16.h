// none: the floats themselves, what a job without compression sends. fp16 and bf16: half of their bits, with
// error feedback; bf16 has a float's range and 7 bits of fraction.
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

/// Of fp16 and of bf16.
std::span<const ParameterInfo> half_parameters() noexcept;
std::unique_ptr<Codec> make_fp16(const CodecSpec& spec);
std::unique_ptr<Codec> fp16_from_wire(const WireParameters& parameters);
std::unique_ptr<Codec> make_bf16(const CodecSpec& spec);
std::unique_ptr<Codec> bf16_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
