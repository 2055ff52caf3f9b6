// Counts votes: payloads of one bit an element become, 64 elements at a time, a count in bit planes, word j
// holding bit j of the number of ones. Words are added as they lie, bit by bit, so no element is unpacked.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/codec.h"

namespace gradwire::compress::one_bit {

/// Elements whose bits share the words of a group.
inline constexpr std::size_t kPlaneGroup = 64;

/// ceil(log2(ways + 1)): bits of a count in [0, ways].
constexpr std::size_t count_bits(std::size_t ways) {
  std::size_t bits = 0;
  while ((std::size_t{1} << bits) < ways + 1) ++bits;
  return bits;
}

constexpr std::size_t plane_bytes(std::size_t elements, std::size_t ways) {
  return (elements + kPlaneGroup - 1) / kPlaneGroup * 8 * count_bits(ways);
}

/// Writes the planes of the payloads' counts; absent elements of the last group count 0.
void votes_to_planes(std::span<const Payload> payloads, std::size_t elements, std::byte* out) noexcept;

/// Writes 2 * count - ways to out and returns the largest count.
std::size_t planes_to_sums(const std::byte* planes, std::size_t ways, std::size_t elements,
                           float* out) noexcept;

}  // namespace gradwire::compress::one_bit
