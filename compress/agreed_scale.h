// How a Server turns the workers' sums of |gradient + residual| into the next round's threshold and level.
//
// Everything is computed in double, converted to float32, then to 8 significant bits, each time to nearest
// even; so all parties who hold the same sums agree to the bit, and k * level is exact for |k| < 2^16.
//
// Threading: all functions are pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "compress/codec.h"
#include "compress/dense_scalar.h"
#include "compress/host_device.h"
#include "compress/two_bit_auto_layout.h"

namespace gradwire::compress {

/// Rounds value >= 0 to 8 significant bits, saturated to the largest finite number that has so many.
GRADWIRE_HOST_DEVICE inline float round_to_8_bits(double value) noexcept {
  constexpr double kLargest = std::numeric_limits<float>::max();
  const auto narrow = static_cast<float>(value < kLargest ? value : kLargest);
  return dense::float_from_bf16(dense::bf16_from_float(narrow));
}

/// Sums over all workers, added in rank order, of one codec unit.
struct RoundSums {
  double all = 0;       ///< sum of |gradient + residual|
  double selected = 0;  ///< the part of it that was sent
  std::uint64_t selected_count = 0;

  /// Adds what the next rank's payload says of the unit.
  GRADWIRE_HOST_DEVICE void add(const two_bit::PayloadUnit& unit) noexcept {
    all += unit.sum_all;
    selected += unit.sum_selected;
    selected_count += unit.selected_count;
  }
};

/// scale times the mean of |x| over `values` values.
GRADWIRE_HOST_DEVICE inline float agreed_threshold(float scale, double sum, std::size_t values) noexcept {
  return round_to_8_bits(static_cast<double>(scale) * (sum / static_cast<double>(values)));
}

/// The next round's scale. The level is the mean of what was sent; of nothing sent, the threshold.
GRADWIRE_HOST_DEVICE inline UnitScale agreed_scale(const RoundSums& sums, float scale,
                                                   std::size_t values) noexcept {
  UnitScale next;
  next.threshold = agreed_threshold(scale, sums.all, values);
  next.level = sums.selected_count == 0
                   ? next.threshold
                   : round_to_8_bits(sums.selected / static_cast<double>(sums.selected_count));
  if (next.threshold > 0 && next.level > 0) return next;
  return {};
}

}  // namespace gradwire::compress
