// Blocks as groups of work items encode them on any Thrust backend: rounded to nearest or by chance.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "compress/block/block_scalar.h"
#include "compress/device/block_payload_thrust.h"
#include "compress/device/block_scales_thrust.h"
#include "compress/device/thrust_items.h"
#include "compress/stochastic/dither.h"

namespace gradwire::compress {

/// How a scaled element is rounded.
struct ToNearest {
  GRADWIRE_HOST_DEVICE std::uint8_t code_of(block::Code code, float scaled, std::size_t) const noexcept {
    return block::code_of(code, scaled);
  }
};
struct ByChance {
  Dither dither;
  GRADWIRE_HOST_DEVICE std::uint8_t code_of(block::Code code, float scaled, std::size_t i) const noexcept {
    return block::dithered_code_of(code, scaled, dither.uniform(i));
  }
};

/// Encodes an item of a block of this scale, as block::encode_block_scalar() does.
template <typename Rounding>
GRADWIRE_HOST_DEVICE void encode_four(const BlockLayout& layout, const Residual& residual,
                                      const Rounding& rounding, std::size_t first, float scale,
                                      ItemInput input, std::byte* out) {
  const float inverse = block::inverse_of(scale);
  std::uint32_t codes = 0;
  for (std::size_t j = 0; j < kItemElements; ++j) {
    if (j >= input.count) continue;
    const float sum = residual.add(input.kept.x[j], input.values.x[j]);
    const float x = block::to_send(layout.code, sum, input.kept.x[j]);
    const std::uint8_t bits = rounding.code_of(layout.code, x * inverse, first + j);
    codes |= std::uint32_t{bits} << (j * block::code_bits(layout.code));
    // An element that is not finite leaves its residual, as block::encode_block_scalar() has it.
    if (is_finite(sum) || !block::has_zero(layout.code))
      input.kept.x[j] = x - block::value_of(layout.code, bits) * scale;
  }
  store_codes(layout.code, codes, input.count, out + layout.code_offset(first));
  residual.store(input.kept, first, input.count);
}

/// Encodes a block with a group of items. Each has four elements of every row of the block. kHolds: it holds
/// all its elements from begin() to end(), and each float is read once; else it reads them each time.
template <typename Source, typename BlockPart, typename Rounding, bool kHolds>
struct EncodeBlockOf {
  static constexpr std::size_t kRow = kGroupItems * kItemElements;
  static constexpr std::size_t kMostRows = 4;  // that an item holds

  struct HeldRows {
    ItemInput rows[kMostRows];
  };
  using Part = BlockPart;
  using Held = std::conditional_t<kHolds, HeldRows, Nothing>;

  Source source;
  BlockLayout layout;
  Residual residual;
  Rounding rounding;
  std::byte* out;
  DeviceReport* report;

  GRADWIRE_HOST_DEVICE Part begin(std::size_t group, std::size_t item, Held& held) const {
    if constexpr (kHolds) {
      // A constant number of rows, unrolled, keeps them in registers. Rows beyond a smaller block read as
      // nothing.
      GRADWIRE_UNROLL
      for (std::size_t row = 0; row < kMostRows; ++row) {
        held.rows[row] = read_item(source, residual, first_of(group, item, row), layout.end_of(group));
      }
    }
    Part part;
    const bool nonfinite =
        for_each_element(group, item, held, [&](std::size_t j, float x) { part.add(j, x); });
    if (nonfinite) report_value(report->nonfinite, 1);
    return part;
  }

 protected:
  /// Calls take(j, x) with what each of the item's elements sends. Returns true when one was not finite.
  template <typename Take>
  GRADWIRE_HOST_DEVICE bool for_each_element(std::size_t group, std::size_t item, const Held& held,
                                             const Take& take) const {
    bool nonfinite = false;
    for_each_row(group, item, held, [&](std::size_t, const ItemInput& input) {
      nonfinite |= for_each_sent(layout.code, residual, input, take);
    });
    return nonfinite;
  }
  GRADWIRE_HOST_DEVICE void encode(std::size_t group, std::size_t item, const Held& held, float scale) const {
    // All items have computed the same scale. One writes it.
    if (item == 0) store_aligned_scale(layout.code, scale, out + layout.scale_offset(group * layout.block()));
    for_each_row(group, item, held, [&](std::size_t first, const ItemInput& input) {
      if (input.count > 0) encode_four(layout, residual, rounding, first, scale, input, out);
    });
  }
  GRADWIRE_HOST_DEVICE std::size_t length_of(std::size_t group) const {
    return layout.end_of(group) - group * layout.block();
  }

 private:
  /// Calls take(first element, input) for the item's part of each row.
  template <typename Take>
  GRADWIRE_HOST_DEVICE void for_each_row(std::size_t group, std::size_t item, const Held& held,
                                         const Take& take) const {
    if constexpr (kHolds) {
      GRADWIRE_UNROLL
      for (std::size_t row = 0; row < kMostRows; ++row) take(first_of(group, item, row), held.rows[row]);
    } else {
      const std::size_t end = layout.end_of(group);
      for (std::size_t first = first_of(group, item, 0); first < end; first += kRow)
        take(first, read_item(source, residual, first, end));
    }
  }
  GRADWIRE_HOST_DEVICE std::size_t first_of(std::size_t group, std::size_t item, std::size_t row) const {
    return group * layout.block() + row * kRow + item * kItemElements;
  }
};

/// With a scale by the largest |x|.
template <typename Source, typename Rounding, bool kHolds>
struct EncodeByMost : EncodeBlockOf<Source, LargestPart, Rounding, kHolds> {
  using Held = typename EncodeBlockOf<Source, LargestPart, Rounding, kHolds>::Held;

  GRADWIRE_HOST_DEVICE void end(std::size_t group, std::size_t item, const Held& held,
                                const LargestPart& largest) const {
    this->encode(group, item, held, block::scale_of(this->layout.code, largest.most));
  }
};

/// With a scale by sums.
template <typename Source, bool kHolds>
struct EncodeBySums : EncodeBlockOf<Source, SumPart, ToNearest, kHolds> {
  struct Held : EncodeBlockOf<Source, SumPart, ToNearest, kHolds>::Held {
    SumPart block;
  };
  using Refined = LargePart;

  GRADWIRE_HOST_DEVICE LargePart refine(std::size_t group, std::size_t item, Held& held,
                                        const SumPart& sum) const {
    // Both sums are needed for the scale, and the second one replaces what the fold holds.
    held.block = sum;
    const float limit = block::limit_of(sum.total(), this->length_of(group));
    LargePart part;
    this->for_each_element(group, item, held, [&](std::size_t j, float x) { part.add(j, x, limit); });
    return part;
  }
  GRADWIRE_HOST_DEVICE void end(std::size_t group, std::size_t item, const Held& held,
                                const LargePart& large) const {
    const float scale = block::scale_of(held.block.total(), large.total(), this->length_of(group));
    this->encode(group, item, held, scale);
  }
};

}  // namespace gradwire::compress
