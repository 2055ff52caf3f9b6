// block_scalar.h's functions on vectors, chosen at run time for this processor, with the same bytes on each.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>

#include "compress/block/block_scalar.h"

namespace gradwire::compress::block {

/// As encode_scalar(). Requires block a power of two in [kLeastBlock, kMostBlock]; with a dither, code an
/// integer and block and the dither's offset multiples of its group.
bool encode(Code code, std::size_t block, const float* grad, float* residual, std::size_t elements,
            std::byte* scales, std::byte* codes, const Dither* dither = nullptr) noexcept;

/// As encode_bf16_scalar(). Requires the same.
bool encode_bf16(Code code, std::size_t block, const float* grad, std::byte* residual, std::size_t elements,
                 std::byte* scales, std::byte* codes, const Dither* dither = nullptr) noexcept;

/// As decode_scalar(). Requires block as encode().
void decode(Code code, std::size_t block, const std::byte* scales, const std::byte* codes,
            std::size_t elements, bool add, float* out) noexcept;

}  // namespace gradwire::compress::block
