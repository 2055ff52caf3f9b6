// Signs with levels on any Thrust backend: what OneBitMean and OneBitVotes send, 32 elements a word.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/device/dense_thrust.h"
#include "compress/device/thrust_items.h"
#include "compress/one_bit/one_bit_scalar.h"
#include "compress/payload/float_bits.h"

namespace gradwire::compress {

/// The level of each unit, one for all or a float each, and what words of zeros are.
struct SignLevels {
  float fixed = 1;
  std::size_t per_unit_bytes = 0;  ///< before the bits; 0: one for all
  one_bit::Zeros zeros = one_bit::Zeros::kSigned;

  /// Of the unit that holds element i of a payload.
  GRADWIRE_HOST_DEVICE float of(const std::byte* payload, std::size_t i) const noexcept {
    return per_unit_bytes == 0 ? fixed : load_aligned<float>(payload + i / kUnitElements * sizeof(float));
  }
};

/// +level or -level of each payload, added in rank order.
struct SignSumSource {
  PayloadBlock payloads;
  SignLevels levels;

  GRADWIRE_HOST_DEVICE Four payload_four(std::size_t way, std::size_t first,
                                         std::size_t count) const noexcept {
    const std::byte* const payload = payloads.at(way);
    // An item's elements have their bits in one word.
    const auto word = load_aligned<std::uint32_t>(payload + levels.per_unit_bytes +
                                                  first / one_bit::kWordElements * sizeof(std::uint32_t));
    Four values{};
    if (one_bit::stands_for_zeros(word, levels.zeros)) return values;
    const float level = levels.of(payload, first);
    for (std::size_t j = 0; j < kItemElements; ++j) {
      const bool bit = (word & one_bit::bit_in_word(first % one_bit::kWordElements + j)) != 0;
      if (j < count) values.x[j] = one_bit::value_of(bit, level);
    }
    return values;
  }
  GRADWIRE_HOST_DEVICE Four four(std::size_t first, std::size_t count) const noexcept {
    return sum_of_payloads(*this, first, count);
  }
};

/// What is encoded of an item's elements: those that do not exist are 0.
struct CountedFour {
  Four x{};
  bool nonfinite = false;

  GRADWIRE_HOST_DEVICE CountedFour(const Residual& residual, const ItemInput& input) {
    for (std::size_t j = 0; j < kItemElements; ++j) {
      if (j >= input.count) continue;
      const float sum = residual.add(input.kept.x[j], input.values.x[j]);
      nonfinite |= !is_finite(sum);
      x.x[j] = counted(sum, input.kept.x[j]);
    }
  }
  GRADWIRE_HOST_DEVICE bool any() const { return x.x[0] != 0 || x.x[1] != 0 || x.x[2] != 0 || x.x[3] != 0; }
};

/// Encodes eight words of bits that a group of items holds at once, as one_bit::encode_scalar() does.
template <typename Source>
struct EncodeSigns {
  // A row is 64 elements of half a warp, two words of bits. Four rows are in flight at once, which hides the
  // latency of memory and still fits in registers.
  static constexpr std::size_t kRows = 4;
  static constexpr std::size_t kRow = kGroupItems * kItemElements;
  static constexpr std::size_t kGroupElements = kRows * kRow;
  static constexpr std::size_t kRowWords = kRow / one_bit::kWordElements;
  static constexpr std::size_t kWordItems = one_bit::kWordElements / kItemElements;

  struct Part {
    std::uint32_t signs[kRows * kRowWords] = {};
    std::uint32_t sent_words = 0;  ///< a bit each
    GRADWIRE_HOST_DEVICE void add(const Part& other) {
      for (std::size_t word = 0; word < kRows * kRowWords; ++word) signs[word] |= other.signs[word];
      sent_words |= other.sent_words;
    }
  };
  struct Held {
    Four x[kRows];
  };

  Source source;
  Residual residual;
  std::size_t elements;
  float least;
  SignLevels levels;
  std::byte* out;  ///< the payload
  DeviceReport* report;

  GRADWIRE_HOST_DEVICE Part begin(std::size_t group, std::size_t item, Held& held) const {
    Part part;
    bool nonfinite = false;
    GRADWIRE_UNROLL
    for (std::size_t row = 0; row < kRows; ++row) {
      const ItemInput input = read_item(source, residual, first_of(group, item, row), elements);
      const CountedFour counted(residual, input);
      held.x[row] = counted.x;
      nonfinite |= counted.nonfinite;
      std::uint32_t signs = 0;
      for (std::size_t j = 0; j < kItemElements; ++j) {
        signs |= j < input.count && counted.x.x[j] >= least ? bit_of(item, j) : 0;
      }
      // By selecting, not by an index: a register has none.
      for (std::size_t word = 0; word < kRowWords; ++word) {
        const bool is_own = item / kWordItems == word;
        part.signs[row * kRowWords + word] = is_own ? signs : 0;
        part.sent_words |= (is_own && counted.any() ? 1u : 0u) << (row * kRowWords + word);
      }
    }
    if (nonfinite) report_value(report->nonfinite, 1);
    return part;
  }
  GRADWIRE_HOST_DEVICE void end(std::size_t group, std::size_t item, const Held& held,
                                const Part& part) const {
    GRADWIRE_UNROLL
    for (std::size_t row = 0; row < kRows; ++row) {
      const std::size_t first = first_of(group, item, row);
      std::uint32_t signs = 0;
      for (std::size_t word = 0; word < kRowWords; ++word) {
        signs |= item / kWordItems == word ? part.signs[row * kRowWords + word] : 0;
      }
      const bool is_sent = (part.sent_words >> (row * kRowWords + item / kWordItems) & 1) != 0;
      const std::uint32_t word = one_bit::word_to_send(signs, !is_sent, levels.zeros);
      if (first - item % kWordItems * kItemElements >= elements) continue;  // there is no such word
      // All eight items of a word know it after the fold. One writes it.
      if (item % kWordItems == 0) store_aligned(word, out + levels.per_unit_bytes + first / 8);
      if (first >= elements) continue;
      const bool zeros = one_bit::stands_for_zeros(word, levels.zeros);
      const float level = levels.of(out, first);
      Four kept{};
      for (std::size_t j = 0; j < kItemElements; ++j) {
        const float sent = one_bit::value_of((word & bit_of(item, j)) != 0, level);
        kept.x[j] = zeros ? held.x[row].x[j] : held.x[row].x[j] - sent;
      }
      residual.store(kept, first, item_elements(elements, first));
    }
  }

 private:
  GRADWIRE_HOST_DEVICE static std::size_t first_of(std::size_t group, std::size_t item, std::size_t row) {
    return group * kGroupElements + row * kRow + item * kItemElements;
  }
  GRADWIRE_HOST_DEVICE static std::uint32_t bit_of(std::size_t item, std::size_t j) {
    return one_bit::bit_in_word(item % kWordItems * kItemElements + j);
  }
};

template <typename Backend, typename Source>
void encode_signs(Backend& backend, const Source& source, std::span<float> residual, std::size_t elements,
                  float least, const SignLevels& levels, std::byte* out, DeviceReport* report) {
  constexpr std::size_t kGroup = EncodeSigns<Source>::kGroupElements;
  backend.fold((elements + kGroup - 1) / kGroup,
               EncodeSigns<Source>{source, Residual(residual), elements, least, levels, out, report});
}

}  // namespace gradwire::compress
