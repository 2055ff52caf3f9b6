// How a library sums payloads of codes: it gathers them or adds them as integers, whichever moves fewer
// bits.
//
// An all-gather moves (N-1) * c bits per element and rank, with c the bits of a code. An all-reduce of w-bit
// integers moves 2 (N-1)/N * w. So 2-bit codes are gathered up to 8 ranks, added as int8 from 9 to 127, and
// as int16 above.
//
// Threading: all functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "compress/payload/integer_sums.h"

namespace gradwire::kvstore {

enum class CodeSums : std::uint8_t {
  kFewestBits,  ///< whichever moves fewer bits
  kGather,
  kIntegers,  ///< where the codec has any, and the ranks are not too many for 16 bits
};

/// "auto", "gather" or "integers".
std::string_view to_string(CodeSums code_sums) noexcept;
/// Throws std::invalid_argument naming the valid words.
CodeSums parse_code_sums(std::string_view text);

/// Bits that each of N ranks sends per element; the heads of payloads are gathered either way.
double gathered_bits(std::uint32_t ranks, std::size_t code_bits) noexcept;
double summed_bits(std::uint32_t ranks, compress::IntegerWidth width) noexcept;

/// The integers to add payloads of codes as; nothing: gather them. Of equal bits, gathering wins: it expands
/// nothing.
std::optional<compress::IntegerWidth> integers_for(CodeSums code_sums, std::uint32_t ranks,
                                                   std::size_t code_bits) noexcept;

}  // namespace gradwire::kvstore
