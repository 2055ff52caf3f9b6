// Sums of floats in one written order, which CPUs and devices follow alike: element i goes to lane i % 64, in
// order of i, in float32 without FMA; then lanes i and i + 32 are added, then i + 16, ..., i + 1. 64 lanes
// are as wide as the widest vectors.
//
// Threading: all functions are pure.
#pragma once

#include <array>
#include <cstddef>

#include "compress/payload/host_device.h"

namespace gradwire::compress {

inline constexpr std::size_t kSumLanes = 64;

/// Adds the upper half of the values to the lower one until one is left.
template <std::size_t kValues>
GRADWIRE_HOST_DEVICE float fold(std::array<float, kValues> values) noexcept {
  for (std::size_t half = kValues / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) values[i] += values[i + half];
  }
  return values[0];
}

}  // namespace gradwire::compress
