// Sums of |x| over each codec unit on any Thrust backend, in the written order of two_bit/unit_sums.h: a
// group of items adds up a block, and who needs a unit's sum folds its blocks.
//
// Threading: all functions are pure; they enqueue and return.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/codec.h"
#include "compress/device/dense_thrust.h"
#include "compress/device/thrust_items.h"
#include "compress/payload/float_bits.h"
#include "compress/payload/host_device.h"
#include "compress/payload/lane_sums.h"
#include "compress/two_bit/two_bit_auto_layout.h"
#include "compress/two_bit/two_bit_scalar.h"
#include "compress/two_bit/unit_sums.h"

namespace gradwire::compress {

/// Blocks of a run of elements.
constexpr std::size_t block_count(std::size_t elements) {
  return (elements + two_bit::kBlockElements - 1) / two_bit::kBlockElements;
}

/// What one unit's blocks hold. Lies in the scratch of a call. Blocks behind the last element are not
/// written.
struct UnitMeasure {
  std::array<float, two_bit::kUnitBlocks> all;
  std::array<float, two_bit::kUnitBlocks> selected;
  std::array<std::uint32_t, two_bit::kUnitBlocks> selected_counts;
};

/// The sums of a unit.
struct UnitTotals {
  float all = 0;
  float selected = 0;
  std::uint32_t selected_count = 0;
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

/// What an item adds up of a block, in the lanes of its four elements; or of a unit, in four of its blocks.
struct SumsPart {
  FourLanes all;
  FourLanes selected;
  std::uint32_t selected_count = 0;

  /// Adds element j of an item.
  GRADWIRE_HOST_DEVICE void add(std::size_t j, float x, bool sent) {
    all.add(j, x);
    selected.add(j, sent ? x : 0.0f);
    selected_count += sent ? 1 : 0;
  }
  GRADWIRE_HOST_DEVICE void add(const SumsPart& other) {
    all.add(other.all);
    selected.add(other.selected);
    selected_count += other.selected_count;
  }
};
static_assert(kGroupItems * kItemElements == two_bit::kUnitBlocks);

/// Rows of lanes that an item reads ahead of what it does with them.
inline constexpr std::size_t kRowsAhead = 4;
static_assert(two_bit::kBlockElements % (kRowsAhead * kSumLanes) == 0);

/// Calls take(first, input) for each four elements of an item of a block, in order.
template <typename Source, typename Take>
GRADWIRE_HOST_DEVICE void for_each_row(const Source& source, const Residual& residual, std::size_t elements,
                                       std::size_t block, std::size_t item, const Take& take) {
  const std::size_t begin = block * two_bit::kBlockElements + item * kItemElements;
  for (std::size_t row = 0; row < two_bit::kBlockElements; row += kRowsAhead * kSumLanes) {
    // Loads first, and then the additions: a chain of additions would wait for memory in each row.
    ItemInput inputs[kRowsAhead];
    GRADWIRE_UNROLL
    for (std::size_t ahead = 0; ahead < kRowsAhead; ++ahead) {
      inputs[ahead] = read_item(source, residual, begin + row + ahead * kSumLanes, elements);
    }
    GRADWIRE_UNROLL
    for (std::size_t ahead = 0; ahead < kRowsAhead; ++ahead) {
      take(begin + row + ahead * kSumLanes, inputs[ahead]);
    }
  }
}

GRADWIRE_HOST_DEVICE inline void keep_block(std::size_t block, const SumsPart& sums, UnitMeasure* measures) {
  UnitMeasure& measure = measures[block / two_bit::kUnitBlocks];
  const std::size_t place = block % two_bit::kUnitBlocks;
  measure.all[place] = sums.all.sum();
  measure.selected[place] = sums.selected.sum();
  measure.selected_counts[place] = sums.selected_count;
}

/// Adds up a block, as two_bit::measure_scalar() does.
template <typename Source>
struct MeasureBlock {
  using Part = SumsPart;
  using Held = Nothing;

  Source source;
  Residual residual;
  const UnitScale* scales;  // selects |x| >= threshold where level > 0; null selects nothing
  std::size_t elements;
  UnitMeasure* measures;

  GRADWIRE_HOST_DEVICE Part begin(std::size_t block, std::size_t item, Held&) const {
    const UnitScale scale = scales == nullptr ? UnitScale{} : scales[block / two_bit::kUnitBlocks];
    const float threshold = two_bit::Quantiser{scale.threshold, scale.level}.effective_threshold();
    Part part;
    for_each_row(source, residual, elements, block, item, [&](std::size_t, const ItemInput& input) {
      for (std::size_t j = 0; j < kItemElements; ++j) {
        const float x = magnitude(residual.add(input.kept.x[j], input.values.x[j]));
        // In the rows' order, into the lane of j: the bits are those of two_bit::measure_scalar().
        if (j < input.count && is_finite(x)) part.add(j, x, x >= threshold);
      }
    });
    return part;
  }
  GRADWIRE_HOST_DEVICE void end(std::size_t block, std::size_t item, const Held&, const Part& sums) const {
    // All items of a group have the sum. One writes it.
    if (item == 0) keep_block(block, sums, measures);
  }
};

/// Enqueues the measuring of all units. `scales` null selects nothing.
template <typename Backend, typename Source>
void measure_units(Backend& backend, const Source& source, std::span<float> residual, const UnitScale* scales,
                   std::size_t elements, UnitMeasure* measures) {
  backend.fold(block_count(elements),
               MeasureBlock<Source>{source, Residual(residual), scales, elements, measures});
}

/// Adds up a unit's blocks; use(unit, totals) gets the totals, infinity as the largest float.
template <typename Use>
struct FoldUnit {
  using Part = SumsPart;
  using Held = Nothing;

  const UnitMeasure* measures;
  std::size_t elements;
  Use use;

  GRADWIRE_HOST_DEVICE Part begin(std::size_t unit, std::size_t item, Held&) const {
    const std::size_t blocks = block_count(two_bit::unit_elements(elements, unit));
    Part part;
    for (std::size_t j = 0; j < kItemElements; ++j) {
      const std::size_t block = item * kItemElements + j;
      // Blocks behind the last element are in scratch that nobody wrote.
      if (block >= blocks) continue;
      part.all.lanes.x[j] = measures[unit].all[block];
      part.selected.lanes.x[j] = measures[unit].selected[block];
      part.selected_count += measures[unit].selected_counts[block];
    }
    return part;
  }
  GRADWIRE_HOST_DEVICE void end(std::size_t unit, std::size_t item, const Held&, const Part& sums) const {
    if (item > 0) return;
    use(unit, UnitTotals{two_bit::saturated(sums.all.sum()), two_bit::saturated(sums.selected.sum()),
                         sums.selected_count});
  }
};

/// Enqueues use(unit, totals) for each unit that was measured.
template <typename Backend, typename Use>
void for_each_unit(Backend& backend, const UnitMeasure* measures, std::size_t elements, const Use& use) {
  backend.fold(unit_count(elements), FoldUnit<Use>{measures, elements, use});
}

}  // namespace gradwire::compress
