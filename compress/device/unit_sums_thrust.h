// Sums of |x| over each codec unit on any Thrust backend, in the written order of two_bit::UnitSums: one item
// per unit and lane adds in the order of elements, one item per unit folds the lanes.
//
// Threading: all functions are pure; they enqueue and return.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/codec.h"
#include "compress/payload/float_bits.h"
#include "compress/payload/host_device.h"
#include "compress/two_bit/two_bit_auto_layout.h"
#include "compress/two_bit/two_bit_scalar.h"

namespace gradwire::compress {

/// What one unit's lanes hold. Lies in the scratch of a call.
struct UnitMeasure {
  std::array<float, two_bit::UnitSums::kLanes> all;
  std::array<float, two_bit::UnitSums::kLanes> selected;
  std::array<std::uint32_t, two_bit::UnitSums::kLanes> selected_counts;

  GRADWIRE_HOST_DEVICE float sum_all() const { return two_bit::UnitSums::fold(all); }
  GRADWIRE_HOST_DEVICE float sum_selected() const { return two_bit::UnitSums::fold(selected); }
  GRADWIRE_HOST_DEVICE std::uint32_t selected_count() const {
    std::uint32_t count = 0;
    for (std::size_t lane = 0; lane < selected_counts.size(); ++lane) count += selected_counts[lane];
    return count;
  }
};

/// The scratch of a run: a measure and a scale for each unit.
struct UnitScratch {
  UnitMeasure* measures;
  UnitScale* scales;

  static constexpr std::size_t bytes(std::size_t elements) {
    return unit_count(elements) * (sizeof(UnitMeasure) + sizeof(UnitScale));
  }
  UnitScratch(std::span<std::byte> scratch, std::size_t elements)
      : measures(reinterpret_cast<UnitMeasure*>(scratch.data())),
        scales(reinterpret_cast<UnitScale*>(measures + unit_count(elements))) {}
};

/// Work items per unit. The first kLanes of them add, the others end at once: they are there because Thrust
/// puts 512 items in a CUDA block, and a unit should have a multiprocessor of its own.
inline constexpr std::size_t kItemsPerUnit = 512;

/// Adds one lane of one unit, as two_bit::measure_scalar() does.
template <typename Source>
struct MeasureLane {
  Source source;
  const float* residual;    // or null
  const UnitScale* scales;  // selects |x| >= threshold where level > 0; null selects nothing
  std::size_t elements;
  UnitMeasure* measures;

  struct Sums {
    float threshold;
    float all = 0;
    float selected = 0;
    std::uint32_t count = 0;

    GRADWIRE_HOST_DEVICE void add(float x) {
      const float counted = is_finite(x) ? magnitude(x) : 0.0f;
      const bool select = is_finite(x) && counted >= threshold;
      all += counted;
      selected += select ? counted : 0.0f;
      count += select ? 1 : 0;
    }
  };

  GRADWIRE_HOST_DEVICE float value(std::size_t i) const {
    return residual == nullptr ? source.at(i) : residual[i] + source.at(i);
  }

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t unit = item / kItemsPerUnit;
    const std::size_t lane = item % kItemsPerUnit;
    constexpr std::size_t kLanes = two_bit::UnitSums::kLanes;
    constexpr std::size_t kAhead = Source::kAhead;
    if (lane >= kLanes) return;
    const UnitScale scale = scales == nullptr ? UnitScale{} : scales[unit];
    Sums sums{two_bit::Quantiser{scale.threshold, scale.level}.effective_threshold()};
    const std::size_t end = unit * kUnitElements + two_bit::unit_elements(elements, unit);
    std::size_t i = unit * kUnitElements + lane;
    for (; i + (kAhead - 1) * kLanes < end; i += kAhead * kLanes) {
      float x[kAhead];
      for (std::size_t a = 0; a < kAhead; ++a) x[a] = value(i + a * kLanes);
      for (std::size_t a = 0; a < kAhead; ++a) sums.add(x[a]);
    }
    for (; i < end; i += kLanes) sums.add(value(i));
    measures[unit].all[lane] = sums.all;
    measures[unit].selected[lane] = sums.selected;
    measures[unit].selected_counts[lane] = sums.count;
  }
};

/// Enqueues the measuring of all units. `scales` null selects nothing.
template <typename Backend, typename Source>
void measure_units(Backend& backend, const Source& source, std::span<float> residual, const UnitScale* scales,
                   std::size_t elements, UnitMeasure* measures) {
  const float* const kept = residual.empty() ? nullptr : residual.data();
  backend.each(unit_count(elements) * kItemsPerUnit,
               MeasureLane<Source>{source, kept, scales, elements, measures});
}

}  // namespace gradwire::compress
