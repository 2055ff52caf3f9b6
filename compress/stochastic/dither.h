// Random rounding: the random numbers of a tensor's elements, each drawn by its place.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compress/codec.h"
#include "compress/payload/host_device.h"
#include "compress/stochastic/philox.h"

namespace gradwire::compress {

/// Where a run of dithered elements stands, and by what it draws.
struct Dither {
  std::uint32_t seed = 0;
  Position position;

  static constexpr std::size_t kGroup = 64;  ///< elements whose numbers come from kGroup / 4 counters
  static constexpr std::size_t kCounters = kGroup / 4;

  /// The counter and the key for counter c of group g, counted from the start of the tensor.
  GRADWIRE_HOST_DEVICE philox::Counter counter(std::uint64_t group, std::size_t c) const noexcept {
    return {static_cast<std::uint32_t>(group * kCounters + c), position.key,
            static_cast<std::uint32_t>(position.step), position.rank};
  }
  GRADWIRE_HOST_DEVICE philox::Key key() const noexcept {
    return {seed, static_cast<std::uint32_t>(philox::Stream::kDither)};
  }
  /// 32 random bits of element i after the position.
  GRADWIRE_HOST_DEVICE std::uint32_t word(std::size_t i) const noexcept {
    const std::uint64_t element = position.offset + i;
    const philox::Counter words = philox::draw(counter(element / kGroup, element % kCounters), key());
    // Chosen by hand: a device keeps an array that is indexed in memory.
    const std::size_t place = element % kGroup / kCounters;
    return place < 2 ? (place == 0 ? words[0] : words[1]) : (place == 2 ? words[2] : words[3]);
  }
  /// The number of element i after the position, in [0, 1), a multiple of 2^-24.
  GRADWIRE_HOST_DEVICE float uniform(std::size_t i) const noexcept {
    return static_cast<float>(word(i) >> 8) * 0x1p-24f;
  }
};

}  // namespace gradwire::compress
