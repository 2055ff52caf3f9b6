// What TwoBitAuto does with blocks and units on any Thrust backend: codes, the units' headers, and the scales
// that follow from a round's sums.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>

#include "compress/device/two_bit_thrust.h"
#include "compress/device/unit_sums_thrust.h"
#include "compress/two_bit/agreed_scale.h"
#include "compress/two_bit/two_bit_auto_layout.h"

namespace gradwire::compress {

/// Encodes a block and adds up its magnitudes, as two_bit::encode_scalar() does, in one pass.
template <typename Source>
struct EncodeBlock {
  using Part = SumsPart;
  using Held = Nothing;

  Source source;
  Residual residual;
  const UnitScale* scales;
  std::size_t elements;
  UnitMeasure* measures;
  std::byte* out;
  DeviceReport* report;

  GRADWIRE_HOST_DEVICE Part begin(std::size_t block, std::size_t item, Held&) const {
    const UnitScale scale = scales[block / two_bit::kUnitBlocks];
    const float threshold = two_bit::Quantiser{scale.threshold, scale.level}.effective_threshold();
    Part part;
    bool nonfinite = false;
    for_each_row(source, residual, elements, block, item, [&](std::size_t first, ItemInput input) {
      CodesOfFour four;
      for (std::size_t j = 0; j < kItemElements; ++j) {
        if (j >= input.count) continue;
        const float x = residual.add(input.kept.x[j], input.values.x[j]);
        const unsigned code =
            four.take(j, x, threshold, scale.level, two_bit::NonFinite::kSkip, input.kept.x[j]);
        // The same sums as MeasureBlock makes, so gradient and residual are read once.
        if (is_finite(x)) part.add(j, magnitude(x), code != 0);
      }
      // Behind the last element, the rest of its word is 0.
      if (first / 4 < two_bit::packed_bytes(elements)) out[first / 4] = std::byte(four.codes);
      if (input.count > 0) residual.store(input.kept, first, input.count);
      nonfinite |= four.nonfinite;
    });
    if (nonfinite) report_value(report->nonfinite, 1);
    return part;
  }
  GRADWIRE_HOST_DEVICE void end(std::size_t block, std::size_t item, const Held&, const Part& sums) const {
    if (item == 0) keep_block(block, sums, measures);
  }
};

/// Writes a unit's header in a payload, and the head before the first.
struct WritePayloadUnit {
  two_bit::Form form;
  const UnitScale* scales;  // null in the dense form
  std::size_t elements;
  std::byte* out;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t unit, const UnitTotals& totals) const {
    // One item writes the head: every other unit would write the same bytes at the same time.
    if (unit == 0) two_bit::write_head(form, elements, out);
    store(two_bit::PayloadUnit{scales == nullptr ? 0 : scales[unit].level, totals.all, totals.selected,
                               totals.selected_count},
          out + two_bit::unit_offset(unit));
  }
};

/// Writes a unit's header in a reply, and the head before the first.
struct WriteReplyUnit {
  two_bit::Form form;
  PayloadBlock payloads;
  float scale;
  Levels levels;                 // of this reply's codes
  const UnitScale* requantised;  // or these, where the codes were made for the reply
  std::size_t elements;
  std::byte* out;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t unit) const {
    if (unit == 0) two_bit::write_head(form, elements, out);
    RoundSums sums;
    // In rank order in double, as Round::next() of two_bit_auto.cpp: the next scale has the same bits on
    // every side.
    for (std::size_t way = 0; way < payloads.ways; ++way) {
      sums.add(two_bit::load_unit<two_bit::PayloadUnit>(payloads.at(way), unit));
    }
    const UnitScale next = agreed_scale(sums, scale, payloads.ways * two_bit::unit_elements(elements, unit));
    const float level = requantised == nullptr ? levels.at_unit(unit) : requantised[unit].level;
    store(two_bit::ReplyUnit{next.threshold, next.level, level, 0}, out + two_bit::unit_offset(unit));
  }
};

/// Takes the mean of |x|, which was measured, times `scale` as threshold of a unit.
struct ChooseThreshold {
  float scale;
  std::size_t elements;
  UnitScale* scales;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t unit, const UnitTotals& totals) const {
    const float threshold = agreed_threshold(scale, totals.all, two_bit::unit_elements(elements, unit));
    // A level above 0 lets MeasureBlock select by the threshold. No element is sent with it.
    scales[unit] = {threshold, threshold};
  }
};

/// Takes threshold and level of a unit from what ChooseThreshold's threshold selected.
struct ChooseScale {
  float scale;
  std::size_t elements;
  UnitScale* scales;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t unit, const UnitTotals& totals) const {
    scales[unit] = agreed_scale({totals.all, totals.selected, totals.selected_count}, scale,
                                two_bit::unit_elements(elements, unit));
  }
};

/// Copies a unit's next scale out of a reply.
struct ReadNext {
  const std::byte* reply;
  UnitScale* next;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t unit) const {
    const auto header = two_bit::load_unit<two_bit::ReplyUnit>(reply, unit);
    next[unit] = {header.next_threshold, header.next_level};
  }
};

}  // namespace gradwire::compress
