// Sums of 16-bit floats: widened to fp32, added, rounded to nearest even. MPI has no such type, so its
// reductions call these.
//
// Threading: pure functions. They need the processor's usual rounding mode; flushing subnormal fp32 to zero
//   changes nothing here but sums of bf16 that are subnormal themselves.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire::transport {

/// to[i] += from[i] for count elements, as IEEE 754 binary16 would: overflow gives an infinity, a NaN stays
/// one. Requires that the two do not overlap.
void add_float16(const std::uint16_t* from, std::uint16_t* to, std::size_t count) noexcept;
/// The same numbers without the processor's own conversions, a twentieth as fast: for processors without
/// them.
void add_float16_portably(const std::uint16_t* from, std::uint16_t* to, std::size_t count) noexcept;
/// As add_float16, for bfloat16.
void add_bfloat16(const std::uint16_t* from, std::uint16_t* to, std::size_t count) noexcept;

}  // namespace gradwire::transport
