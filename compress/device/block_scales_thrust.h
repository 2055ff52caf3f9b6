// The scale of a block on any Thrust backend: what items add up for it.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compress/block/block_scalar.h"
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

}  // namespace gradwire::compress
