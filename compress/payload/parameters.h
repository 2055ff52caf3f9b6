// Reads the parameters of a CodecSpec; every error names the codec, the parameter, what was given and what is
// expected.
//
// Threading: all functions are pure.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "compress/codec.h"

namespace gradwire::compress {

/// The value given for `name`, or null.
const ParameterValue* find_parameter(const CodecSpec& spec, std::string_view name) noexcept;

/// The given number, which must be finite and above 0 as a float32, or default_value. `others` is what the
/// error offers besides a number, e.g. " or the word auto". Throws std::invalid_argument.
float positive_float(const CodecSpec& spec, std::string_view name, float default_value,
                     std::string_view others = "");

/// The given whole number, which must be a power of two in [least, most], or default_value. Throws
/// std::invalid_argument.
std::size_t power_of_two(const CodecSpec& spec, std::string_view name, std::size_t default_value,
                         std::size_t least, std::size_t most);

/// The parameter "seed", a whole number in [0, 2^32); 0 when none is given. Throws std::invalid_argument.
std::uint32_t seed_of(const CodecSpec& spec);

/// The position in `valid` of the given word, or 0 when none is given. Throws std::invalid_argument.
std::size_t word_index(const CodecSpec& spec, std::string_view name,
                       std::initializer_list<std::string_view> valid);

/// A float from a frame header's bits. Throws DecodeError unless it is finite and above 0.
float positive_float_from_wire(std::string_view codec, std::string_view name, std::uint32_t bits);

/// A power of two from a frame header. Throws DecodeError unless it is one in [least, most].
std::size_t power_of_two_from_wire(std::string_view codec, std::string_view name, std::uint32_t value,
                                   std::size_t least, std::size_t most);

/// Throws DecodeError unless every parameter from `first` on is 0, as an encoder leaves those it has no use
/// for.
void expect_unused_from_wire(std::string_view codec, const WireParameters& parameters, std::size_t first);

/// Shortest text that reads back as the same float32 or double; words as they are.
std::string parameter_text(const ParameterValue& value);

/// Reads text as a number. Returns false when it is not one as a whole.
bool parse_number(std::string_view text, double& value) noexcept;

}  // namespace gradwire::compress
