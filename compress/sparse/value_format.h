// Options of codecs that send a part of the elements: the part, and the format of a value.
//
// Threading: all functions are pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "compress/codec.h"
#include "compress/dense/dense_scalar.h"

namespace gradwire::compress {

/// The parameter "ratio", above 0 and at most 1. Throws std::invalid_argument.
float ratio_of(const CodecSpec& spec, float default_value);

/// A ratio from a frame header's bits. Throws DecodeError.
float ratio_from_wire(std::string_view codec, std::uint32_t bits);

/// The parameter "values": fp32, fp16 or bf16. Throws std::invalid_argument.
dense::Format value_format(const CodecSpec& spec);

/// A format from a frame header's number. Throws DecodeError.
dense::Format value_format_from_wire(std::string_view codec, std::uint32_t number);

/// A format's number in a frame header: part of the wire format, never renumber.
std::uint32_t number_of(dense::Format values) noexcept;

std::string_view name_of(dense::Format values) noexcept;

}  // namespace gradwire::compress
