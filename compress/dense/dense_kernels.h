// SIMD forms of dense_scalar.h: the same bytes on every target.
//
// Threading: all functions are pure; they touch only the memory handed to them and allocate nothing.
#pragma once

#include <cstddef>
#include <span>

#include "compress/codec.h"
#include "compress/dense/dense_scalar.h"

namespace gradwire::compress::dense {

/// As encode_scalar(); true also where an x is beyond the format.
bool encode(Format format, const float* grad, float* residual, std::size_t elements, std::byte* out) noexcept;

/// As encode_bf16_scalar(), likewise.
bool encode_bf16(Format format, const float* grad, std::byte* residual, std::size_t elements,
                 std::byte* out) noexcept;

/// As sum_scalar().
bool sum(Format format, std::span<const Payload> payloads, std::size_t offset, std::size_t elements,
         float* out) noexcept;

/// As decode_scalar(). From 65 536 elements on, out is written around the cache.
void decode(Format format, const std::byte* payload, std::size_t elements, float scale, float* out) noexcept;

}  // namespace gradwire::compress::dense
