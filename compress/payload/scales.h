// Scales in a payload: float32 or bfloat16, one after the other.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace gradwire::compress {

/// Names the first of `count` scales that is negative or not finite, "the scale of block 3 is nan, ...";
/// empty when none is.
/// Requires scales to be count values of 4 or 2 bytes.
std::string wrong_scale(std::span<const std::byte> scales, std::size_t count, std::string_view of);

}  // namespace gradwire::compress
