// Codes of 2bit as integers: written out for a library to add, and the sums that it gives back.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>

#include "compress/payload/integer_sums.h"

namespace gradwire::compress::two_bit {

/// The integer sum of each element's codes over `ways` payloads.
struct IntegerCodes {
  const std::byte* values = nullptr;  ///< not aligned
  IntegerWidth width = IntegerWidth::kInt8;
  std::size_t ways = 0;

  IntegerCodes from_element(std::size_t first) const noexcept {
    return {values + first * bytes_of(width), width, ways};
  }
};

/// Writes +1, -1 or 0 for each element of packed codes.
void expand_codes(const std::byte* packed, std::size_t elements, IntegerWidth width, std::byte* out) noexcept;

/// As sum_to_floats() and sum_to_planes() of the codes that were summed. Require every |sum| <= ways.
void sum_to_floats(const IntegerCodes& codes, std::size_t elements, float level, float* out) noexcept;
void sum_to_planes(const IntegerCodes& codes, std::size_t elements, std::byte* out) noexcept;

/// Checks what a library gave back: as many integers as there are elements, and none that `ways` codes cannot
/// have. Throws DecodeError.
IntegerCodes checked_codes(const SummedRound& round, std::size_t elements);

}  // namespace gradwire::compress::two_bit
