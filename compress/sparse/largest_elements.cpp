#include "compress/sparse/largest_elements.h"

#include <algorithm>
#include <functional>

#include "compress/sparse/sparse_kernels.h"

namespace gradwire::compress::sparse {
namespace {

constexpr std::size_t kSampleEvery = 61;  // a prime, so that rows of a matrix do not line up with it
constexpr std::size_t kLeastSamples = 64;

/// The value of rank `count` (1: the largest) among the first `length`, which are reordered.
std::uint32_t value_of_rank(std::vector<std::uint32_t>& values, std::size_t length, std::size_t count) {
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(values.begin(), nth, values.begin() + static_cast<std::ptrdiff_t>(length),
                   std::greater<>());
  return *nth;
}

}  // namespace

LargestElements::LargestElements() : indices_(kUnitElements + kCollectSlack), magnitudes_(kUnitElements) {}

/// Bits that likely at least `count` elements reach: 0 where a sample would say too little.
std::uint32_t LargestElements::guess(const float* x, std::size_t elements, std::size_t count) {
  const std::size_t samples = elements / kSampleEvery;
  // A quarter and eight more than the sample's share: too low a bound costs a little, too high a second pass.
  const std::size_t rank = count * samples * 5 / 4 / elements + 8;
  if (samples < kLeastSamples || rank > samples) return 0;
  for (std::size_t i = 0; i < samples; ++i) magnitudes_[i] = magnitude_bits(x[i * kSampleEvery]);
  return value_of_rank(magnitudes_, samples, rank);
}

std::span<const std::uint32_t> LargestElements::find(const float* x, std::size_t elements,
                                                     std::size_t count) {
  std::size_t found = collect(x, elements, guess(x, elements, count), indices_.data());
  // The guess was too high. 0 collects all, so the result never depends on the sample.
  if (found < count) found = collect(x, elements, 0, indices_.data());
  for (std::size_t i = 0; i < found; ++i) magnitudes_[i] = magnitude_bits(x[indices_[i]]);
  const std::uint32_t bound = value_of_rank(magnitudes_, found, count);
  // The reordering has put what is above the bound before it.
  auto ties = static_cast<std::size_t>(
      std::count(magnitudes_.begin(), magnitudes_.begin() + static_cast<std::ptrdiff_t>(count), bound));
  std::size_t kept = 0;
  for (std::size_t i = 0; i < found; ++i) {
    const std::uint32_t bits = magnitude_bits(x[indices_[i]]);
    if (bits < bound || (bits == bound && ties == 0)) continue;
    if (bits == bound) --ties;
    indices_[kept++] = indices_[i];
  }
  return {indices_.data(), kept};
}

}  // namespace gradwire::compress::sparse
