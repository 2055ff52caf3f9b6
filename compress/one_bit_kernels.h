// one_bit_scalar.h's functions on vectors, chosen at run time for this processor, with the same bytes on
// each.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>

#include "compress/one_bit_scalar.h"

namespace gradwire::compress::one_bit {

/// As encode_scalar().
bool encode(const float* grad, float* residual, std::size_t elements, float least, float level,
            std::byte* out) noexcept;

/// As decode_scalar().
void decode(const std::byte* packed, std::size_t elements, float level, bool add, float* out) noexcept;

}  // namespace gradwire::compress::one_bit
