// Counts of elements in bit planes on any Thrust backend: what 1bit and 2bit have as exact replies. Per group
// of 64 elements, word j holds bit j of every element's count, element e in bit e.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/device/device_loader.h"
#include "compress/device/four_elements.h"
#include "compress/device/thrust_items.h"
#include "compress/one_bit/bit_plane_counters.h"
#include "compress/one_bit/one_bit_scalar.h"
#include "compress/payload/host_device.h"
#include "compress/two_bit/two_bit_sums_scalar.h"

namespace gradwire::compress {

inline constexpr std::size_t kPlaneGroup = two_bit::kPlaneGroup;
static_assert(kPlaneGroup == one_bit::kPlaneGroup);

/// Writes one word of bit planes: bit item % bits of the counts of group item / bits, which are made anew for
/// each. counts.planes_count(i) is that of element i.
template <typename Counts>
struct EncodePlanes {
  Counts counts;
  std::size_t bits;
  std::size_t elements;
  std::byte* out;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item / bits * kPlaneGroup;
    const std::size_t bit = item % bits;
    std::uint64_t word = 0;
    for (std::size_t e = 0; e < kPlaneGroup && first + e < elements; ++e) {
      word |= std::uint64_t{counts.planes_count(first + e) >> bit & 1} << e;
    }
    store_aligned(word, out + item * sizeof word);
  }
};

/// The counts of an item's elements, the absent ones of the last group included.
struct FourCounts {
  std::uint32_t x[kItemElements] = {};

  GRADWIRE_HOST_DEVICE FourCounts(const std::byte* planes, std::size_t bits, std::size_t first) {
    const std::byte* const group = planes + first / kPlaneGroup * bits * sizeof(std::uint64_t);
    for (std::size_t bit = 0; bit < bits; ++bit) {
      const auto word = load_aligned<std::uint64_t>(group + bit * sizeof(std::uint64_t));
      const auto four = static_cast<std::uint32_t>(word >> (first % kPlaneGroup));
      for (std::size_t j = 0; j < kItemElements; ++j) x[j] |= (four >> j & 1) << bit;
    }
  }
};

/// An element's integer sum, as bit planes have it: above 0.
struct CodeCounts {
  CodeSumSource codes;

  GRADWIRE_HOST_DEVICE std::uint32_t planes_count(std::size_t i) const noexcept {
    return static_cast<std::uint32_t>(codes.count_at(i) + static_cast<std::int32_t>(codes.payloads.ways));
  }
};

/// Reads an item back from bit planes, absent elements of the last group included, and reports impossible
/// counts.
struct DecodePlanes {
  const std::byte* planes;
  std::size_t ways;
  std::size_t bits;
  Levels levels;
  float factor;
  std::size_t elements;
  float* out;
  DeviceReport* report;
  bool whole = moves_whole(out);

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item * kItemElements;
    const FourCounts counts(planes, bits, first);
    for (const std::uint32_t count : counts.x) {
      // Reported, since a kernel cannot throw: check_report() on the host refuses the reply later.
      if (count > 2 * ways) report_value(report->bad_count, count);
    }
    // After the check: bits of absent elements are part of the format, too.
    if (first >= elements) return;
    const float level = levels.at_element(first);
    Four values;
    for (std::size_t j = 0; j < kItemElements; ++j) {
      const auto sum = static_cast<std::int32_t>(counts.x[j]) - static_cast<std::int32_t>(ways);
      // In this order, as the CPU decodes first and multiplies by the factor of a mean after that.
      values.x[j] = static_cast<float>(sum) * level * factor;
    }
    store_four(values, item_elements(elements, first), whole, out + first);
  }
};

template <typename Backend>
void encode_planes(Backend& backend, const CodeSumSource& codes, std::size_t elements, std::byte* out) {
  const std::size_t words = two_bit::plane_bytes(elements, codes.payloads.ways) / sizeof(std::uint64_t);
  backend.each(words,
               EncodePlanes<CodeCounts>{{codes}, two_bit::count_bits(codes.payloads.ways), elements, out});
}

template <typename Backend>
void decode_planes(Backend& backend, const std::byte* planes, std::size_t ways, const Levels& levels,
                   float factor, std::span<float> out, DeviceReport* report) {
  const std::size_t groups = (out.size() + kPlaneGroup - 1) / kPlaneGroup;
  backend.each(
      groups * (kPlaneGroup / kItemElements),
      DecodePlanes{planes, ways, two_bit::count_bits(ways), levels, factor, out.size(), out.data(), report});
}

/// Votes for an element.
struct VoteCounts {
  PayloadBlock payloads;

  GRADWIRE_HOST_DEVICE std::uint32_t planes_count(std::size_t i) const noexcept {
    std::uint32_t count = 0;
    for (std::size_t way = 0; way < payloads.ways; ++way)
      count += one_bit::bit_at(payloads.at(way), i) ? 1 : 0;
    return count;
  }
};

/// Reads an item back from bit planes, and reports impossible counts as one_bit::planes_to_sums() has them
/// checked.
struct DecodeVotes {
  const std::byte* planes;
  std::size_t ways;
  std::size_t bits;
  float factor;
  std::size_t elements;
  float* out;
  DeviceReport* report;
  bool whole = moves_whole(out);

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item * kItemElements;
    const std::size_t count = item_elements(elements, first);
    const FourCounts votes(planes, bits, first);
    Four values;
    for (std::size_t j = 0; j < kItemElements; ++j) {
      if (j < count && votes.x[j] > ways) report_value(report->bad_count, 2 * votes.x[j]);
      const auto sum = 2 * static_cast<std::int32_t>(votes.x[j]) - static_cast<std::int32_t>(ways);
      values.x[j] = static_cast<float>(sum) * factor;
    }
    store_four(values, count, whole, out + first);
  }
};

}  // namespace gradwire::compress
