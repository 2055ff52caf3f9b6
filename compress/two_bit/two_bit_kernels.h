// SIMD forms of two_bit_scalar.h and two_bit_sums_scalar.h: the same bytes on every target.
//
// Threading: all functions are pure; they touch only the memory handed to them and allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compress/two_bit/two_bit_scalar.h"
#include "compress/two_bit/two_bit_sums_scalar.h"

namespace gradwire::compress::two_bit {

/// As encode_scalar(). sums needs NonFinite::kSkip.
bool encode(const float* grad, float* residual, std::size_t elements, const Quantiser& quantiser,
            std::byte* out, UnitSums* sums) noexcept;

/// As encode_bf16_scalar().
bool encode_bf16(const float* grad, std::byte* residual, std::size_t elements, const Quantiser& quantiser,
                 std::byte* out) noexcept;

/// As measure_scalar().
void measure(const float* grad, const float* residual, std::size_t elements, float threshold,
             UnitSums* sums) noexcept;

/// As sum_to_floats_scalar().
void sum_to_floats(const Codes& codes, std::size_t elements, float level, float* out) noexcept;

/// As add_to_floats_scalar().
void add_to_floats(const std::byte* packed, std::size_t elements, float level, float* out) noexcept;

/// As sum_to_planes_scalar().
void sum_to_planes(const Codes& codes, std::size_t elements, std::byte* out) noexcept;

/// As counts_to_planes_scalar().
void counts_to_planes(const std::uint8_t* counts, std::size_t elements, std::size_t ways,
                      std::byte* out) noexcept;

/// As planes_to_floats_scalar().
std::uint32_t planes_to_floats(const std::byte* planes, std::size_t ways, std::size_t elements, float level,
                               float* out) noexcept;

}  // namespace gradwire::compress::two_bit
