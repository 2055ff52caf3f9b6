// Which elements of a codec unit randomk sends: drawn without replacement, by counting, so that everybody who
// knows the seed and the round knows them.
//
// Source: Wangni et al. 2018 and Stich et al. 2018, "Sparsified SGD with memory", for rand-k; a Feistel
// permutation with cycle walking (Black and Rogaway 2002) in place of a shuffle.
//
// Threading: all functions are pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "compress/philox.h"

namespace gradwire::compress {

/// A permutation of [0, elements), of at most kUnitElements; its first k places are the elements to send.
class DrawnElements {
 public:
  DrawnElements(std::uint32_t seed, std::uint32_t key, std::uint32_t step, std::uint32_t unit,
                std::size_t elements) noexcept
      : elements_(elements),
        half_bits_(static_cast<unsigned>(std::bit_width(elements - 1) + 1) / 2),
        keys_(philox::draw({unit, key, step, 0},
                           {seed, static_cast<std::uint32_t>(philox::Stream::kRandomK)})) {}

  /// The element at a place in [0, elements).
  std::size_t operator[](std::size_t place) const noexcept {
    // What falls outside walks on; as the permutation is a set of cycles, it comes back inside.
    do place = permuted(place);
    while (place >= elements_);
    return place;
  }

 private:
  std::size_t permuted(std::size_t value) const noexcept {
    const std::uint32_t mask = (1u << half_bits_) - 1;
    std::uint32_t left = static_cast<std::uint32_t>(value) >> half_bits_;
    std::uint32_t right = static_cast<std::uint32_t>(value) & mask;
    for (std::uint32_t key : keys_) {
      const std::uint32_t mixed = left ^ (mix(right ^ key) & mask);
      left = right;
      right = mixed;
    }
    return left << half_bits_ | right;
  }

  static std::uint32_t mix(std::uint32_t v) noexcept {  // the end of MurmurHash3: every bit reaches every bit
    v = (v ^ v >> 16) * 0x85ebca6bu;
    v = (v ^ v >> 13) * 0xc2b2ae35u;
    return v ^ v >> 16;
  }

  std::size_t elements_;
  unsigned half_bits_;
  philox::Counter keys_;
};

}  // namespace gradwire::compress
