// sparse_scalar.h's functions on vectors, chosen at run time for this processor, with the same bytes on each.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compress/sparse/sparse_scalar.h"

namespace gradwire::compress::sparse {

/// Elements behind the last index that collect() may overwrite.
inline constexpr std::size_t kCollectSlack = 16;

/// As accumulate_scalar().
bool accumulate(const float* grad, float* residual, std::size_t elements, float* x) noexcept;

/// As collect_scalar(). Requires room for elements + kCollectSlack indices.
std::size_t collect(const float* x, std::size_t elements, std::uint32_t least,
                    std::uint32_t* indices) noexcept;

}  // namespace gradwire::compress::sparse
