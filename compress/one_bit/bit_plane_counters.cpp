#include "compress/one_bit/bit_plane_counters.h"

#include <algorithm>
#include <cstring>

#include "compress/one_bit/one_bit_scalar.h"
#include "compress/payload/little_endian.h"

namespace gradwire::compress::one_bit {
namespace {

/// The votes of a group, element e in bit e, those beyond `length` 0.
std::uint64_t votes_of(const std::byte* packed, std::size_t length) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, packed, packed_bytes(length));
  word = (word >> 1 & 0x5555555555555555) | (word & 0x5555555555555555) << 1;
  word = (word >> 2 & 0x3333333333333333) | (word & 0x3333333333333333) << 2;
  word = (word >> 4 & 0x0f0f0f0f0f0f0f0f) | (word & 0x0f0f0f0f0f0f0f0f) << 4;
  return length == kPlaneGroup ? word : word & ((std::uint64_t{1} << length) - 1);
}

}  // namespace

void votes_to_planes(std::span<const Payload> payloads, std::size_t elements, std::byte* out) noexcept {
  const std::size_t bits = count_bits(payloads.size());
  for (std::size_t i = 0; i < elements; i += kPlaneGroup, out += 8 * bits) {
    std::uint64_t planes[64] = {};
    for (const Payload& payload : payloads) {
      std::uint64_t carry = votes_of(payload.data() + i / 8, std::min(kPlaneGroup, elements - i));
      for (std::size_t j = 0; carry != 0; ++j) {
        const std::uint64_t sum = planes[j] ^ carry;
        carry &= planes[j];
        planes[j] = sum;
      }
    }
    std::memcpy(out, planes, 8 * bits);
  }
}

std::size_t planes_to_sums(const std::byte* planes, std::size_t ways, std::size_t elements,
                           float* out) noexcept {
  const std::size_t bits = count_bits(ways);
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < elements; i += kPlaneGroup, planes += 8 * bits) {
    std::uint32_t counts[kPlaneGroup] = {};
    for (std::size_t j = 0; j < bits; ++j) {
      const auto plane = load<std::uint64_t>(planes + 8 * j);
      for (std::size_t e = 0; e < kPlaneGroup; ++e)
        counts[e] |= static_cast<std::uint32_t>(plane >> e & 1) << j;
    }
    for (std::size_t e = 0; e < std::min(kPlaneGroup, elements - i); ++e) {
      largest = std::max(largest, counts[e]);
      out[i + e] = static_cast<float>(2 * static_cast<int>(counts[e]) - static_cast<int>(ways));
    }
  }
  return largest;
}

}  // namespace gradwire::compress::one_bit
