// The twins of OneBitMean and OneBitVotes on any Thrust backend.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <memory>
#include <utility>

#include "compress/device/float_sum_thrust.h"
#include "compress/device/unit_sums_thrust.h"
#include "compress/one_bit/bit_plane_counters.h"
#include "compress/one_bit/one_bit.h"
#include "compress/one_bit/one_bit_scalar.h"
#include "compress/one_bit/one_bit_votes.h"

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

  GRADWIRE_HOST_DEVICE float payload_at(std::size_t way, std::size_t i) const noexcept {
    const std::byte* const payload = payloads.at(way);
    const auto word = load_aligned<std::uint32_t>(payload + levels.per_unit_bytes +
                                                  i / one_bit::kWordElements * sizeof(std::uint32_t));
    if (one_bit::stands_for_zeros(word, levels.zeros)) return 0;
    const bool bit = (word & one_bit::bit_in_word(i % one_bit::kWordElements)) != 0;
    return one_bit::value_of(bit, levels.of(payload, i));
  }
  GRADWIRE_HOST_DEVICE float at(std::size_t i) const noexcept {
    float sum = payload_at(0, i);
    for (std::size_t way = 1; way < payloads.ways; ++way) sum += payload_at(way, i);
    return sum;
  }
  GRADWIRE_HOST_DEVICE Four four(std::size_t first, std::size_t count) const noexcept {
    Four values{};
    for (std::size_t j = 0; j < kItemElements; ++j) {
      if (j < count) values.x[j] = at(first + j);
    }
    return values;
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

/// Adds up a block, as MeasureBlock does, and counts the elements in words that are not all 0.
template <typename Source>
struct MeasureSent {
  static constexpr std::size_t kBlockWords = two_bit::kBlockElements / one_bit::kWordElements;
  static_assert(kBlockWords == 32);

  struct Part {
    SumsPart sums;
    std::uint32_t sent_words = 0;  ///< a bit each
    GRADWIRE_HOST_DEVICE void add(const Part& other) {
      sums.add(other.sums);
      sent_words |= other.sent_words;
    }
  };
  using Held = Nothing;

  Source source;
  Residual residual;
  std::size_t elements;
  UnitMeasure* measures;

  GRADWIRE_HOST_DEVICE Part begin(std::size_t block, std::size_t item, Held&) const {
    Part part;
    for_each_row(source, residual, elements, block, item, [&](std::size_t first, const ItemInput& input) {
      const CountedFour counted(residual, input);
      const std::size_t word = first % two_bit::kBlockElements / one_bit::kWordElements;
      // A word is sent if any of its elements is not 0. The eight items that hold it each set the bit that
      // they know.
      part.sent_words |= (counted.any() ? 1u : 0u) << word;
      for (std::size_t j = 0; j < kItemElements; ++j) {
        const float x = residual.add(input.kept.x[j], input.values.x[j]);
        // Into the lane of j in every row, as lane_sums.h has it: the sum has the bits of
        // one_bit::encode_scalar().
        if (j < input.count && is_finite(x)) part.sums.add(j, magnitude(x), false);
      }
    });
    return part;
  }
  GRADWIRE_HOST_DEVICE void end(std::size_t block, std::size_t item, const Held&, Part part) const {
    if (item > 0) return;
    for (std::size_t word = 0; word < kBlockWords; ++word) {
      const std::size_t first = block * two_bit::kBlockElements + word * one_bit::kWordElements;
      if ((part.sent_words >> word & 1) == 0) continue;
      // The last word of a tensor may have fewer elements, and the mean is over elements.
      const std::size_t left = elements - first;
      part.sums.selected_count +=
          static_cast<std::uint32_t>(left < one_bit::kWordElements ? left : one_bit::kWordElements);
    }
    keep_block(block, part.sums, measures);
  }
};

/// Writes the mean of |x| over what is sent of a unit.
struct StoreMean {
  std::byte* out;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t unit, const UnitTotals& totals) const {
    // Divided in double and rounded once, as FORMAT.md has it and the CPU does.
    const double sum = totals.all;
    const std::uint32_t sent = totals.selected_count;
    const float mean = sent == 0 ? 0 : static_cast<float>(sum / static_cast<double>(sent));
    store_aligned(mean, out + unit * sizeof(float));
  }
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

struct OneBitMeanForm {
  static constexpr std::size_t scratch_bytes(std::size_t elements) { return UnitScratch::bytes(elements); }
  static constexpr SignLevels levels(std::size_t elements) {
    return {0, unit_count(elements) * sizeof(float), one_bit::Zeros::kMarked};
  }

  template <typename Backend, typename Source>
  void encode(Backend& backend, const Source& source, std::span<float> residual, std::size_t elements,
              std::byte* out, const DeviceWork& work) const {
    const UnitScratch scratch(work.scratch, elements);
    backend.fold(block_count(elements),
                 MeasureSent<Source>{source, Residual(residual), elements, scratch.measures});
    for_each_unit(backend, scratch.measures, elements, StoreMean{out});
    encode_signs(backend, source, residual, elements, 0, levels(elements), out, work.report);
  }

  template <typename Backend>
  SignSumSource sum(Backend&, const PayloadBlock& payloads, std::size_t elements, const DeviceWork&) const {
    return {payloads, levels(elements)};
  }

  template <typename Backend>
  void decode(Backend& backend, const PayloadBlock& payloads, float factor, std::span<float> out) const {
    decode_items(backend, SignSumSource{payloads, levels(out.size())}, factor, out);
  }
};

struct OneBitVotesForm {
  float threshold;

  static constexpr std::size_t scratch_bytes(std::size_t) { return 0; }

  template <typename Backend, typename Source>
  void encode(Backend& backend, const Source& source, std::span<float> residual, std::size_t elements,
              std::byte* out, const DeviceWork& work) const {
    encode_signs(backend, source, residual, elements, one_bit::above(threshold), {}, out, work.report);
  }

  template <typename Backend>
  SignSumSource sum(Backend&, const PayloadBlock& payloads, std::size_t, const DeviceWork&) const {
    return {payloads, {}};
  }

  template <typename Backend>
  void decode(Backend& backend, const PayloadBlock& payloads, float factor, std::span<float> out) const {
    decode_items(backend, SignSumSource{payloads, {}}, factor, out);
  }
};

/// Writes one word of bit planes: bit item % bits of the votes for group item / bits, which is counted anew
/// for each.
struct EncodeBitPlanes {
  PayloadBlock payloads;
  std::size_t bits;
  std::size_t elements;
  std::byte* out;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item / bits * one_bit::kPlaneGroup;
    std::uint64_t word = 0;
    for (std::size_t e = 0; e < one_bit::kPlaneGroup && first + e < elements; ++e) {
      std::uint64_t count = 0;
      for (std::size_t way = 0; way < payloads.ways; ++way)
        count += one_bit::bit_at(payloads.at(way), first + e) ? 1 : 0;
      word |= (count >> item % bits & 1) << e;
    }
    store_aligned(word, out + item * sizeof word);
  }
};

/// Reads an item back from bit planes, and reports impossible counts as one_bit::planes_to_sums() has them
/// checked.
struct DecodeBitPlanes {
  const std::byte* planes;
  std::size_t ways;
  std::size_t bits;
  float factor;
  std::size_t elements;
  float* out;
  DeviceReport* report;
  bool whole = moves_whole(out);

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item * kItemElements;
    const std::size_t count = item_elements(elements, first);
    const std::byte* const group = planes + first / one_bit::kPlaneGroup * bits * sizeof(std::uint64_t);
    std::uint32_t votes[kItemElements] = {};
    for (std::size_t bit = 0; bit < bits; ++bit) {
      const auto word = load_aligned<std::uint64_t>(group + bit * sizeof(std::uint64_t));
      const auto four = static_cast<std::uint32_t>(word >> (first % one_bit::kPlaneGroup));
      for (std::size_t j = 0; j < kItemElements; ++j) votes[j] |= (four >> j & 1) << bit;
    }
    Four values;
    for (std::size_t j = 0; j < kItemElements; ++j) {
      if (j < count && votes[j] > ways) report_value(report->bad_count, 2 * votes[j]);
      const auto sum = 2 * static_cast<std::int32_t>(votes[j]) - static_cast<std::int32_t>(ways);
      values.x[j] = static_cast<float>(sum) * factor;
    }
    store_four(values, count, whole, out + first);
  }
};

template <typename Backend>
class OneBitVotesDeviceCodec final : public FloatSumDeviceCodec<Backend, OneBitVotesForm> {
 public:
  using Parent = FloatSumDeviceCodec<Backend, OneBitVotesForm>;
  using Parent::codec;
  using Parent::Parent;

  std::size_t encode_reply(const DevicePayloads& payloads, std::size_t elements, ReplyKind kind,
                           std::span<float> residual, std::span<std::byte> out,
                           const DeviceWork& work) const override {
    if (kind == ReplyKind::kFp32) return Parent::encode_reply(payloads, elements, kind, residual, out, work);
    const std::size_t bytes = this->expect_reply_room(payloads, elements, kind, residual, out, work);
    const std::size_t ways = payloads.host.size();
    const PayloadBlock block = block_of(payloads);
    Backend backend(work.stream);
    if (kind == ReplyKind::kSame) {
      encode_signs(backend, SignSumSource{block, {}}, residual, elements, one_bit::above(0),
                   SignLevels{static_cast<float>(ways)}, out.data(), work.report);
    } else {
      const std::size_t words = bytes / sizeof(std::uint64_t);
      backend.each(words, EncodeBitPlanes{block, one_bit::count_bits(ways), elements, out.data()});
    }
    return bytes;
  }

  void decode_reply(const DevicePayload& reply, std::size_t ways, ReplyKind kind, float factor,
                    std::span<float> out, std::span<UnitScale> next, const DeviceWork& work) const override {
    if (kind == ReplyKind::kFp32) return Parent::decode_reply(reply, ways, kind, factor, out, next, work);
    expect_ways(codec().name(), ways);
    expect_bytes(codec().name(), "the reply", reply.host.size(),
                 codec().max_reply_size(out.size(), ways, kind), out.size());
    expect_aligned(codec().name(), "the reply", reply.device);
    expect_work(codec().name(), work, 0);
    Backend backend(work.stream);
    if (kind == ReplyKind::kSame) {
      const SignLevels level{static_cast<float>(ways)};
      return decode_items(backend, SignSumSource{block_of(reply), level}, factor, out);
    }
    backend.each(item_count(out.size()), DecodeBitPlanes{reply.device, ways, one_bit::count_bits(ways),
                                                         factor, out.size(), out.data(), work.report});
  }
};

/// Makes the twin of 1bit, of the mean or of a threshold.
template <typename Backend>
std::unique_ptr<DeviceCodec> make_one_bit_twin(std::unique_ptr<Codec> codec) {
  std::unique_ptr<FloatSumCodec> floats(static_cast<FloatSumCodec*>(codec.release()));
  if (!floats->has_exact_reply())
    return std::make_unique<FloatSumDeviceCodec<Backend, OneBitMeanForm>>(std::move(floats),
                                                                          OneBitMeanForm{});
  const OneBitVotesForm form{static_cast<const OneBitVotes&>(*floats).threshold()};
  return std::make_unique<OneBitVotesDeviceCodec<Backend>>(std::move(floats), form);
}

}  // namespace gradwire::compress
