// terngrad_scalar.h's functions on vectors, chosen at run time for this processor, with the same bytes on
// each.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>

#include "compress/stochastic/terngrad_scalar.h"

namespace gradwire::compress::terngrad {

/// As measure_scalar().
void measure(const float* grad, const float* residual, std::size_t elements, Moments* moments) noexcept;

/// As encode_scalar(). Requires the dither's offset and `first` to be multiples of its group.
bool encode(const float* grad, float* residual, std::size_t elements, float scale, const Dither* dither,
            std::size_t first, std::byte* codes) noexcept;

}  // namespace gradwire::compress::terngrad
