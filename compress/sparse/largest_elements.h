// Finds the largest elements of a codec unit exactly, without sorting it.
//
// Threading: an object is one thread's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compress/codec.h"

namespace gradwire::compress::sparse {

/// A sample guesses a bound that a few more than the wanted elements reach, those are collected, and among
/// them the exact bound is found. A guess that was too high is made up for; it never shows in the result.
class LargestElements {
 public:
  LargestElements();

  /// Returns the indices of the `count` largest |x| in ascending order; of equal ones, the lower index is
  /// taken. Valid until the next call. Requires 1 <= count <= elements <= kUnitElements and x finite.
  std::span<const std::uint32_t> find(const float* x, std::size_t elements, std::size_t count);

 private:
  std::uint32_t guess(const float* x, std::size_t elements, std::size_t count);

  std::vector<std::uint32_t> indices_;
  std::vector<std::uint32_t> magnitudes_;
};

}  // namespace gradwire::compress::sparse
