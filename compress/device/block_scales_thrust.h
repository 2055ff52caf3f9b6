// The scale of a block on any Thrust backend: what items add up for it, and blocks that are read once for
// their scale and once for their codes.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compress/device/block_payload_thrust.h"
#include "compress/device/dense_thrust.h"
#include "compress/device/thrust_items.h"
#include "compress/payload/float_bits.h"

namespace gradwire::compress {

/// What an item adds up of a block: its largest |x|.
struct LargestPart {
  float most = 0;
  GRADWIRE_HOST_DEVICE void add(std::size_t, float x) { most = magnitude(x) > most ? magnitude(x) : most; }
  GRADWIRE_HOST_DEVICE void add(const LargestPart& other) { most = other.most > most ? other.most : most; }
};

/// The same, and the sum of |x|.
struct SumPart {
  LargestPart largest;
  FourLanes sizes;
  GRADWIRE_HOST_DEVICE void add(std::size_t j, float x) {
    largest.add(j, x);
    sizes.add(j, magnitude(x));
  }
  GRADWIRE_HOST_DEVICE void add(const SumPart& other) {
    largest.add(other.largest);
    sizes.add(other.sizes);
  }
  GRADWIRE_HOST_DEVICE block::BlockSum total() const { return {largest.most, sizes.sum()}; }
};

/// What an item adds up of the elements above a limit.
struct LargePart {
  std::uint32_t count = 0;
  FourLanes sizes;
  GRADWIRE_HOST_DEVICE void add(std::size_t j, float x, float limit) {
    if (magnitude(x) <= limit) return;
    ++count;
    sizes.add(j, magnitude(x));
  }
  GRADWIRE_HOST_DEVICE void add(const LargePart& other) {
    count += other.count;
    sizes.add(other.sizes);
  }
  GRADWIRE_HOST_DEVICE block::LargeSum total() const { return {count, sizes.sum()}; }
};

/// Calls take(j, x) with what each element of an item sends. Returns true when one was not finite.
template <typename Take>
GRADWIRE_HOST_DEVICE bool for_each_sent(block::Code code, const Residual& residual, const ItemInput& input,
                                        const Take& take) {
  bool nonfinite = false;
  for (std::size_t j = 0; j < kItemElements; ++j) {
    if (j >= input.count) continue;
    const float x = residual.add(input.kept.x[j], input.values.x[j]);
    nonfinite |= !is_finite(x);
    take(j, block::to_send(code, x, input.kept.x[j]));
  }
  return nonfinite;
}

/// Writes the scale of block `item`.
template <typename Source>
struct ScaleBlock {
  Source source;
  BlockLayout layout;
  Residual residual;
  std::byte* out;
  DeviceReport* report;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t begin = item * layout.block();
    const std::size_t length = layout.end_of(item) - begin;
    store_aligned_scale(layout.code,
                        block::scales_by_sums(layout.code) ? by_sums(begin, length) : by_most(begin, length),
                        out + layout.scale_offset(begin));
  }

 private:
  GRADWIRE_HOST_DEVICE float by_most(std::size_t begin, std::size_t length) const {
    LargestPart part;
    for_each_item(begin, length, [&](std::size_t, std::size_t j, float x) { part.add(j, x); });
    return block::scale_of(layout.code, part.most);
  }
  GRADWIRE_HOST_DEVICE float by_sums(std::size_t begin, std::size_t length) const {
    // One item plays the parts of a group, so that the sum has the written order of lanes.
    SumPart parts[kGroupItems];
    for_each_item(begin, length, [&](std::size_t i, std::size_t j, float x) { parts[i].add(j, x); });
    add_up(parts);
    const block::BlockSum block = parts[0].total();
    const float limit = block::limit_of(block, length);
    LargePart large[kGroupItems];
    for_each_item(begin, length, [&](std::size_t i, std::size_t j, float x) { large[i].add(j, x, limit); });
    add_up(large);
    return block::scale_of(block, large[0].total(), length);
  }
  /// Calls take(item of a group, place in the item, x) for each element of the block.
  template <typename Take>
  GRADWIRE_HOST_DEVICE void for_each_item(std::size_t begin, std::size_t length, const Take& take) const {
    bool nonfinite = false;
    for (std::size_t at = 0; at < length; at += kItemElements) {
      const ItemInput input = read_item(source, residual, begin + at, begin + length);
      nonfinite |= for_each_sent(layout.code, residual, input, [&](std::size_t j, float x) {
        // Where this element lies if a group holds the block: item, and lane of the item.
        take(at / kItemElements % kGroupItems, j, x);
      });
    }
    if (nonfinite) report_value(report->nonfinite, 1);
  }
};

}  // namespace gradwire::compress
