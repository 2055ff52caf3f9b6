// How a Server computes the next round's threshold and level from the workers' sums of |gradient +
// residual|, and those of a reply from its own sums.
//
// Everything is computed in double, converted to float32, then to 8 significant bits, each time to nearest
// even. So all parties that have the same sums agree to the bit, and k * level is exact for |k| < 2^16.
//
// Threading: all functions are pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "compress/codec.h"
#include "compress/dense/dense_scalar.h"
#include "compress/payload/host_device.h"
#include "compress/two_bit/two_bit_auto_layout.h"

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

/// A selection is kept as long as what it sent has at least 1 / kEnergyRatio of the energy that the mean of
/// all |x| would have had. Gaussian values sent above 1.5 means have all of it, those of trained networks at
/// least two thirds (experiments/auto_threshold).
inline constexpr double kEnergyRatio = 4;

/// Threshold and level after a round of `values` values whose sums are given.
///
/// A level in place of m elements of mean |x| = a takes at most m * a^2 from the squares of x: its energy.
/// Elements above scale means of |x| are sent as their own mean, as long as that has the energy. Else the
/// next round sends what reaches half the mean, as the mean: where all |x| are alike, nothing reaches 1.5
/// means, and where few are far above the rest, the rest never would. A level never goes to an element
/// below half of it, which it would move away from 0.
GRADWIRE_HOST_DEVICE inline UnitScale agreed_scale(const RoundSums& sums, float scale,
                                                   std::size_t values) noexcept {
  const double mean = sums.all / static_cast<double>(values);
  const double sent = sums.selected_count == 0 ? 0 : sums.selected / static_cast<double>(sums.selected_count);
  UnitScale next;
  if (sums.all * mean > kEnergyRatio * (sums.selected * sent)) {
    next = {agreed_threshold(scale < 0.5f ? scale : 0.5f, sums.all, values), round_to_8_bits(mean)};
  } else {
    next = {agreed_threshold(scale, sums.all, values), round_to_8_bits(sent)};
    if (next.threshold < next.level / 2) next.threshold = next.level / 2;
  }
  if (next.threshold > 0 && next.level > 0) return next;
  return {};
}

}  // namespace gradwire::compress
