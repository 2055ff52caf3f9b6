// int8 and int4: integers scaled by the largest element of each block. nf2: four levels in 2 bits, 1 and 4
// times a scale, up and down; a block has the scale that leaves least of it. nf4: sixteen levels in 4 bits,
// scaled by the largest element. All with error feedback.
//
// Source: block_scalar.h.
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

std::span<const ParameterInfo> int4_parameters() noexcept;
std::unique_ptr<Codec> make_int4(const CodecSpec& spec);
std::unique_ptr<Codec> int4_from_wire(const WireParameters& parameters);

std::span<const ParameterInfo> nf2_parameters() noexcept;
std::unique_ptr<Codec> make_nf2(const CodecSpec& spec);
std::unique_ptr<Codec> nf2_from_wire(const WireParameters& parameters);

std::span<const ParameterInfo> nf4_parameters() noexcept;
std::unique_ptr<Codec> make_nf4(const CodecSpec& spec);
std::unique_ptr<Codec> nf4_from_wire(const WireParameters& parameters);

}  // namespace gradwire::compress
