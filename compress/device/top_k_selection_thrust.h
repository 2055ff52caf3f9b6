// What TopK sends of each unit, on any Thrust backend. The bound that the sent elements of a unit reach is
// found digit by digit, in histograms, so nothing is sorted and no element moves.
//
// Source: Alabi et al. 2012, "Fast k-selection algorithms for graphics processing units" (radix select).
// Ours: exact in each codec unit, ties to the lower index, as sparse_scalar.h has it.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda/atomic>
#include <span>

#include "compress/codec.h"
#include "compress/dense/dense_scalar.h"
#include "compress/payload/host_device.h"
#include "compress/sparse/sparse_scalar.h"
#include "compress/two_bit/two_bit_auto_layout.h"

namespace gradwire::compress {

/// Where the elements that are sent lie in a payload: unit by unit, indices, then values.
struct TopKLayout {
  dense::Format values;
  std::size_t elements;
  std::size_t whole_sent;  ///< of a whole unit
  std::size_t last_sent;   ///< of the last, which may be shorter

  TopKLayout(float ratio, dense::Format format, std::size_t count) noexcept
      : values(format),
        elements(count),
        whole_sent(sparse::sent_count(ratio, kUnitElements)),
        last_sent(sparse::sent_count(ratio, length(unit_count(count) - 1))) {}

  GRADWIRE_HOST_DEVICE std::size_t length(std::size_t unit) const noexcept {
    return two_bit::unit_elements(elements, unit);
  }
  GRADWIRE_HOST_DEVICE std::size_t sent(std::size_t unit) const noexcept {
    return unit + 1 == unit_count(elements) ? last_sent : whole_sent;
  }
  GRADWIRE_HOST_DEVICE std::size_t index_offset(std::size_t unit, std::size_t position) const noexcept {
    return unit * whole_sent * (kIndexBytes + dense::bytes_per_element(values)) + position * kIndexBytes;
  }
  GRADWIRE_HOST_DEVICE std::size_t value_offset(std::size_t unit, std::size_t position) const noexcept {
    return index_offset(unit, sent(unit)) + position * dense::bytes_per_element(values);
  }
  /// Elements that are sent of all units.
  std::size_t sent_of_all() const noexcept { return (unit_count(elements) - 1) * whole_sent + last_sent; }

  static constexpr std::size_t kIndexBytes = sizeof(std::uint16_t);
};

/// What is known of a unit's bound while it is looked for.
struct TopKUnit {
  std::uint32_t prefix;  ///< the digits found, in their places
  std::uint32_t left;    ///< elements to send among those that have the prefix
};

/// A run of a unit's elements, and how many of them, and of those before them in the unit, are sent for sure
/// or tie.
struct TopKChunk {
  std::uint32_t above;
  std::uint32_t equal;
};

inline constexpr std::size_t kTopKDigitBits = 8;
inline constexpr std::size_t kTopKBins = std::size_t{1} << kTopKDigitBits;
inline constexpr std::size_t kTopKChunkElements = 256;
inline constexpr std::size_t kTopKChunks = kUnitElements / kTopKChunkElements;

struct TopKScratch {
  float* x;
  TopKUnit* units;
  TopKChunk* chunks;    ///< kTopKChunks a unit
  std::uint32_t* bins;  ///< kTopKBins a unit

  static constexpr std::size_t x_bytes(std::size_t elements) {
    return (elements + 1) / 2 * 2 * sizeof(float);
  }
  static constexpr std::size_t bytes(std::size_t elements) {
    return x_bytes(elements) + unit_count(elements) * (sizeof(TopKUnit) + kTopKChunks * sizeof(TopKChunk) +
                                                       kTopKBins * sizeof(std::uint32_t));
  }
  TopKScratch(std::span<std::byte> scratch, std::size_t elements)
      : x(reinterpret_cast<float*>(scratch.data())),
        units(reinterpret_cast<TopKUnit*>(scratch.data() + x_bytes(elements))),
        chunks(reinterpret_cast<TopKChunk*>(units + unit_count(elements))),
        bins(reinterpret_cast<std::uint32_t*>(chunks + unit_count(elements) * kTopKChunks)) {}
};

/// Begins the search in unit `item / kTopKBins`.
struct BeginTopK {
  TopKLayout layout;
  TopKScratch scratch;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    scratch.bins[item] = 0;
    const std::size_t unit = item / kTopKBins;
    if (item % kTopKBins == 0) scratch.units[unit] = {0, static_cast<std::uint32_t>(layout.sent(unit))};
  }
};

/// Counts the digit of element `item` at `shift`, if the digits above are the unit's.
struct CountDigit {
  TopKScratch scratch;
  unsigned shift;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::uint32_t bits = sparse::magnitude_bits(scratch.x[item]);
    const std::size_t unit = item / kUnitElements;
    // 64 bits: at the first digit the shift is by 32, which 32 bits do not allow.
    const std::uint64_t above = ~std::uint64_t{0} << (shift + kTopKDigitBits);
    if ((bits & above) != (scratch.units[unit].prefix & above)) return;
    std::uint32_t& bin = scratch.bins[unit * kTopKBins + (bits >> shift) % kTopKBins];
    // Integers: their sum does not depend on the order of the items.
    cuda::atomic_ref<std::uint32_t, cuda::thread_scope_device>(bin).fetch_add(1, cuda::memory_order_relaxed);
  }
};

/// Takes the digit of unit `item` from its counts, which are cleared.
struct ChooseDigit {
  TopKScratch scratch;
  unsigned shift;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    std::uint32_t* const bins = scratch.bins + item * kTopKBins;
    TopKUnit& unit = scratch.units[item];
    bool is_found = false;
    for (std::uint32_t digit = kTopKBins; digit-- > 0;) {
      const std::uint32_t count = bins[digit];
      // For the next digit, also after this one is found: a pass of its own is spared.
      bins[digit] = 0;
      if (is_found) continue;
      // From the largest digit down: these elements are all sent, and the bound lies below them.
      if (count < unit.left) {
        unit.left -= count;
      } else {
        unit.prefix |= digit << shift;
        is_found = true;
      }
    }
  }
};

/// Counts what chunk `item` has above the bound and at it.
struct CountChunk {
  TopKLayout layout;
  TopKScratch scratch;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t begin = item * kTopKChunkElements;
    const std::uint32_t bound = scratch.units[item / kTopKChunks].prefix;
    TopKChunk found{0, 0};
    for (std::size_t i = begin; i < begin + kTopKChunkElements && i < layout.elements; ++i) {
      const std::uint32_t bits = sparse::magnitude_bits(scratch.x[i]);
      found.above += bits > bound ? 1 : 0;
      found.equal += bits == bound ? 1 : 0;
    }
    scratch.chunks[item] = found;
  }
};

/// Turns the counts of unit `item` into those of the chunks before.
struct ScanChunks {
  TopKScratch scratch;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    TopKChunk before{0, 0};
    for (std::size_t c = item * kTopKChunks; c < (item + 1) * kTopKChunks; ++c) {
      const TopKChunk here = scratch.chunks[c];
      scratch.chunks[c] = before;
      before.above += here.above;
      before.equal += here.equal;
    }
  }
};

}  // namespace gradwire::compress
