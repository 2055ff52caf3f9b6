// The twins of OneBitMean and OneBitVotes on any Thrust backend.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <memory>
#include <utility>

#include "compress/device/bit_planes_thrust.h"
#include "compress/device/float_sum_thrust.h"
#include "compress/device/signs_thrust.h"
#include "compress/device/unit_sums_thrust.h"
#include "compress/one_bit/bit_plane_counters.h"
#include "compress/one_bit/one_bit.h"
#include "compress/one_bit/one_bit_scalar.h"
#include "compress/one_bit/one_bit_votes.h"

namespace gradwire::compress {

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

struct OneBitMeanForm {
  static constexpr std::size_t scratch_bytes(std::size_t elements) { return UnitScratch::bytes(elements); }
  static constexpr SignLevels levels(std::size_t elements) {
    return {0, unit_count(elements) * sizeof(float), one_bit::Zeros::kMarked};
  }

  template <typename Backend, typename Source>
  void encode(Backend& backend, const Source& source, std::span<float> residual, std::size_t elements,
              const Position*, std::byte* out, const DeviceWork& work) const {
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
              const Position*, std::byte* out, const DeviceWork& work) const {
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
      backend.each(words, EncodePlanes<VoteCounts>{{block}, one_bit::count_bits(ways), elements, out.data()});
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
    backend.each(item_count(out.size()), DecodeVotes{reply.device, ways, one_bit::count_bits(ways), factor,
                                                     out.size(), out.data(), work.report});
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
