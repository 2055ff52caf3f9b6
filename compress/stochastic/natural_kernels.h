// natural_scalar.h's functions on vectors, chosen at run time for this processor, with the same bytes on
// each.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>

#include "compress/stochastic/natural_scalar.h"

namespace gradwire::compress::natural {

/// As encode_scalar(), from the dither's own position on. Requires that to be a multiple of its group.
bool encode(const float* grad, float* residual, std::size_t elements, const Dither* dither,
            std::byte* exponents, std::byte* signs) noexcept;

/// As decode_scalar().
void decode(const std::byte* exponents, const std::byte* signs, std::size_t elements, bool add,
            float* out) noexcept;

}  // namespace gradwire::compress::natural
