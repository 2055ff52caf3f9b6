// one_bit_scalar.h's functions on vectors, chosen at run time for this processor, with the same bytes on
// each.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>

#include "compress/one_bit/one_bit_scalar.h"

namespace gradwire::compress::one_bit {

/// As encode_scalar().
bool encode(const float* grad, float* residual, std::size_t elements, const SignCode& code,
            std::byte* out) noexcept;

/// As sent_elements_scalar().
std::size_t sent_elements(const float* grad, const float* residual, std::size_t elements) noexcept;

/// As decode_scalar().
void decode(const std::byte* packed, std::size_t elements, const SignCode& code, bool add,
            float* out) noexcept;

}  // namespace gradwire::compress::one_bit
