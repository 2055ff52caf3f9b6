// The elements of a codec unit that randomk sends: drawn without replacement, by counting. So everybody who
// knows the seed and the round can draw them.
//
// Source: Wangni et al. 2018 and Stich et al. 2018, "Sparsified SGD with memory", for rand-k; Knuth, "The
// Art of Computer Programming", volume 2, section 3.4.2, algorithm P (a shuffle that ends after the first
// k).
//
// Threading: one thread at a time; several objects are independent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "compress/codec.h"
#include "compress/stochastic/philox.h"

namespace gradwire::compress {

/// The inputs of a draw: other numbers draw other elements.
struct DrawKey {
  std::uint32_t seed = 0;
  std::uint32_t key = 0;   ///< of the tensor
  std::uint32_t step = 0;  ///< lower half of the round
  std::uint32_t unit = 0;  ///< of the tensor
};

class RandomSelection {
 public:
  /// Returns `count` elements of [0, elements), every choice and order of them as likely as any other, but
  /// for elements / 2^32. Valid until the next call. Requires count <= elements <= kUnitElements.
  std::span<const std::uint32_t> draw(const DrawKey& by, std::size_t elements, std::size_t count) noexcept {
    philox::Counter words{};
    for (std::size_t i = 0; i < count; ++i) {
      if (i % words.size() == 0) {
        words = philox::draw({by.unit, by.key, by.step, static_cast<std::uint32_t>(i / words.size())},
                             {by.seed, static_cast<std::uint32_t>(philox::Stream::kRandomK)});
      }
      swapped_[i] = static_cast<std::uint32_t>(i + (words[i % words.size()] * (elements - i) >> 32));
      std::swap(places_[i], places_[swapped_[i]]);
    }
    // Only what was swapped is put back, so that a draw costs by count and not by elements.
    for (std::size_t i = 0; i < count; ++i) {
      drawn_[i] = places_[i];
      places_[i] = static_cast<std::uint32_t>(i);
    }
    for (std::size_t i = 0; i < count; ++i) places_[swapped_[i]] = swapped_[i];
    return std::span(drawn_).first(count);
  }

 private:
  static std::vector<std::uint32_t> in_order() {
    std::vector<std::uint32_t> places(kUnitElements);
    std::iota(places.begin(), places.end(), 0U);
    return places;
  }

  std::vector<std::uint32_t> places_ = in_order();  ///< in order between two calls
  std::vector<std::uint32_t> swapped_ = std::vector<std::uint32_t>(kUnitElements);
  std::vector<std::uint32_t> drawn_ = std::vector<std::uint32_t>(kUnitElements);
};

}  // namespace gradwire::compress
