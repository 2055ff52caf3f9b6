// Sums of 2-bit codes element by element, as floats and as counts in bit planes: the specification of
// two_bit_sum_kernels.cpp, on every target byte for byte.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/codec.h"
#include "compress/payload/little_endian.h"
#include "compress/two_bit/two_bit_scalar.h"

namespace gradwire::compress::two_bit {

/// Payloads whose counts k + ways fit one byte; more ways take the scalar form everywhere.
inline constexpr std::size_t kMaxByteWays = 127;

/// Elements in a group of bit planes.
inline constexpr std::size_t kPlaneGroup = 64;

/// ceil(log2(2 * ways + 1)): bits of a count in [0, 2 * ways].
constexpr std::size_t count_bits(std::size_t ways) {
  std::size_t bits = 0;
  while ((std::size_t{1} << bits) < 2 * ways + 1) ++bits;
  return bits;
}

constexpr std::size_t plane_bytes(std::size_t elements, std::size_t ways) {
  return (elements + kPlaneGroup - 1) / kPlaneGroup * 8 * count_bits(ways);
}

/// The packed codes of one payload per way, each starting `offset` bytes into its payload.
struct Codes {
  std::span<const Payload> payloads;
  std::size_t offset = 0;

  std::size_t ways() const noexcept { return payloads.size(); }
  const std::byte* packed(std::size_t way) const noexcept { return payloads[way].data() + offset; }
  Codes from_element(std::size_t first) const noexcept { return {payloads, offset + first / 4}; }
};

inline std::int32_t sum_at(const Codes& codes, std::size_t i) noexcept {
  std::int32_t sum = 0;
  for (std::size_t way = 0; way < codes.ways(); ++way) sum += code_at(codes.packed(way), i);
  return sum;
}

/// Writes fl(k * level), k being the integer sum of an element's codes.
inline void sum_to_floats_scalar(const Codes& codes, std::size_t elements, float level, float* out) noexcept {
  for (std::size_t i = 0; i < elements; ++i) out[i] = static_cast<float>(sum_at(codes, i)) * level;
}

/// Adds code * level of one payload's codes to out.
inline void add_to_floats_scalar(const std::byte* packed, std::size_t elements, float level,
                                 float* out) noexcept {
  for (std::size_t i = 0; i < elements; ++i) out[i] += static_cast<float>(code_at(packed, i)) * level;
}

/// Writes count_at(i) for each element in bit planes: per group of 64 elements, word j holds bit j of every
/// element's count, element e in bit e. Absent elements of the last group are 0. Writes plane_bytes(elements,
/// ways).
template <typename CountAt>
void to_planes_scalar(std::size_t elements, std::size_t ways, std::byte* out,
                      const CountAt& count_at) noexcept {
  const std::size_t bits = count_bits(ways);
  for (std::size_t first = 0; first < elements; first += kPlaneGroup, out += 8 * bits) {
    std::array<std::uint64_t, 32> planes{};
    for (std::size_t e = 0; e < std::min(kPlaneGroup, elements - first); ++e) {
      const std::uint32_t count = count_at(first + e);
      for (std::size_t j = 0; j < bits; ++j) planes[j] |= std::uint64_t{count >> j & 1} << e;
    }
    for (std::size_t j = 0; j < bits; ++j) store(planes[j], out + 8 * j);
  }
}

/// Writes k + ways, k being the integer sum of an element's codes, in bit planes.
inline void sum_to_planes_scalar(const Codes& codes, std::size_t elements, std::byte* out) noexcept {
  to_planes_scalar(elements, codes.ways(), out, [&](std::size_t i) {
    return static_cast<std::uint32_t>(sum_at(codes, i) + static_cast<int>(codes.ways()));
  });
}

/// Writes counts, k + ways of each element, in bit planes. Requires ways <= kMaxByteWays.
inline void counts_to_planes_scalar(const std::uint8_t* counts, std::size_t elements, std::size_t ways,
                                    std::byte* out) noexcept {
  to_planes_scalar(elements, ways, out, [&](std::size_t i) { return std::uint32_t{counts[i]}; });
}

/// Reads bit planes back and writes fl(k * level). Returns the largest count found, absent elements included;
/// it is at most 2 * ways unless the bytes are bad.
inline std::uint32_t planes_to_floats_scalar(const std::byte* planes, std::size_t ways, std::size_t elements,
                                             float level, float* out) noexcept {
  const std::size_t bits = count_bits(ways);
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < (elements + kPlaneGroup - 1) / kPlaneGroup * kPlaneGroup; ++i) {
    const std::byte* const group = planes + i / kPlaneGroup * 8 * bits;
    std::uint32_t count = 0;
    for (std::size_t j = 0; j < bits; ++j) {
      count |= static_cast<std::uint32_t>(load<std::uint64_t>(group + 8 * j) >> (i % kPlaneGroup) & 1) << j;
    }
    largest = std::max(largest, count);
    if (i < elements)
      out[i] = static_cast<float>(static_cast<std::int32_t>(count) - static_cast<std::int32_t>(ways)) * level;
  }
  return largest;
}

}  // namespace gradwire::compress::two_bit
