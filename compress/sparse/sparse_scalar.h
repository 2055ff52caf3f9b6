// The rule of codecs that send a few elements of a codec unit: the specification of sparse_kernels, on every
// target byte for byte. It says which elements are the largest.
//
// Source: Aji and Heafield 2017, "Sparse communication for distributed gradient descent"; Lin et al. 2018,
// "Deep gradient compression", section 3. Deviation: exact in each codec unit, ties to the lower index.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "compress/payload/float_bits.h"
#include "compress/payload/host_device.h"

namespace gradwire::compress::sparse {

/// Elements that are sent of `elements`: the ratio of them, in float32, rounded up. So 0.1 of 100 are 10.
inline std::size_t sent_count(float ratio, std::size_t elements) noexcept {
  const float wanted = std::ceil(ratio * static_cast<float>(elements));
  return std::clamp<std::size_t>(static_cast<std::size_t>(wanted), elements == 0 ? 0 : 1, elements);
}

GRADWIRE_HOST_DEVICE inline std::uint32_t magnitude_bits(float x) noexcept {
  return std::bit_cast<std::uint32_t>(x) & ~kSignBit;
}

/// Writes x = residual + grad (x = grad when residual is null) to x, and to residual. An x that is not finite
/// is 0 and leaves the residual as it was. Returns true when such an x was found.
inline bool accumulate_scalar(const float* grad, float* residual, std::size_t elements, float* x) noexcept {
  bool nonfinite = false;
  for (std::size_t i = 0; i < elements; ++i) {
    const float sum = residual == nullptr ? grad[i] : residual[i] + grad[i];
    const bool finite = is_finite(sum);
    x[i] = finite ? sum : 0;
    if (residual != nullptr && finite) residual[i] = sum;
    nonfinite |= !finite;
  }
  return nonfinite;
}

/// Writes the indices of the elements whose |x| has at least these bits, in ascending order, and returns
/// their number.
inline std::size_t collect_scalar(const float* x, std::size_t elements, std::uint32_t least,
                                  std::uint32_t* indices) noexcept {
  std::size_t count = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    if (magnitude_bits(x[i]) >= least) indices[count++] = static_cast<std::uint32_t>(i);
  }
  return count;
}

/// The indices of the `count` largest |x| in ascending order, by sorting all: what any faster way must find.
inline std::vector<std::uint32_t> largest_by_sorting(const float* x, std::size_t elements,
                                                     std::size_t count) {
  std::vector<std::uint32_t> indices(elements);
  for (std::size_t i = 0; i < elements; ++i) indices[i] = static_cast<std::uint32_t>(i);
  std::stable_sort(indices.begin(), indices.end(), [&](std::uint32_t a, std::uint32_t b) {
    return magnitude_bits(x[a]) > magnitude_bits(x[b]);
  });
  indices.resize(count);
  std::sort(indices.begin(), indices.end());
  return indices;
}

}  // namespace gradwire::compress::sparse
