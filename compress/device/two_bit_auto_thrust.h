// The twin of TwoBitAuto on any Thrust backend.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <bit>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "compress/device/dense_thrust.h"
#include "compress/device/device_codec.h"
#include "compress/device/two_bit_auto_units_thrust.h"
#include "compress/payload/parameters.h"
#include "compress/two_bit/two_bit_auto_checks.h"
#include "compress/two_bit/two_bit_auto_layout.h"

namespace gradwire::compress {

template <typename Backend>
class TwoBitAutoDeviceCodec final : public DeviceCodec {
 public:
  /// codec is a TwoBitAuto of these scales.
  TwoBitAutoDeviceCodec(std::unique_ptr<Codec> codec, float scale, float reply_scale) noexcept
      : DeviceCodec(std::move(codec)), scale_(scale), reply_scale_(reply_scale) {}

  std::size_t scratch_bytes(std::size_t elements) const noexcept override {
    return UnitScratch::bytes(elements);
  }

  std::size_t encode(std::span<const float> grad, std::span<float> residual,
                     std::span<const UnitScale> scales, std::span<std::byte> out, const Position&,
                     const DeviceWork& work) const override {
    const std::size_t elements = grad.size();
    expect_encode_spans(codec().name(), elements, residual.size(), out.size(),
                        codec().max_encoded_size(elements));
    two_bit::expect_scales(scales.size(), elements);
    expect_aligned(codec().name(), "the payload", out.data());
    expect_work(codec().name(), work, scratch_bytes(elements));
    const FloatSource source(grad.data());
    const UnitScratch scratch(work.scratch, elements);
    std::byte* const body = out.data() + two_bit::body_offset(elements);
    Backend backend(work.stream);
    // Agreed scales need one pass. Without any, the payload is of floats, and what would be sent is only
    // measured.
    if (!scales.empty()) {
      backend.fold(block_count(elements),
                   EncodeBlock<FloatSource>{source, Residual(residual), scales.data(), elements,
                                            scratch.measures, body, work.report});
      for_each_unit(backend, scratch.measures, elements,
                    WritePayloadUnit{two_bit::Form::kCodes, scales.data(), elements, out.data()});
      return two_bit::body_offset(elements) + two_bit::packed_bytes(elements);
    }
    // What would be sent is measured before encoding, which clears the residual.
    measure_units(backend, source, residual, nullptr, elements, scratch.measures);
    for_each_unit(backend, scratch.measures, elements, ChooseThreshold{scale_, elements, scratch.scales});
    measure_units(backend, source, residual, scratch.scales, elements, scratch.measures);
    for_each_unit(backend, scratch.measures, elements,
                  WritePayloadUnit{two_bit::Form::kDense, nullptr, elements, out.data()});
    encode_dense(backend, source, dense::Format::kF32Finite, residual, elements, body, work.report);
    return two_bit::body_offset(elements) + elements * sizeof(float);
  }

  void decode_sum(const DevicePayloads& payloads, float factor, std::span<float> out,
                  const DeviceWork& work) const override {
    const Round round(payloads, out.size());
    Backend backend(work.stream);
    round.with_source([&](const auto& source) { decode_items(backend, source, factor, out); });
  }

  std::size_t encode_reply(const DevicePayloads& payloads, std::size_t elements, ReplyKind kind,
                           std::span<float> residual, std::span<std::byte> out,
                           const DeviceWork& work) const override {
    const Round round(payloads, elements);
    const std::size_t ways = payloads.host.size();
    expect_encode_spans(codec().name(), elements, residual.size(), out.size(),
                        codec().max_reply_size(elements, ways, kind));
    expect_aligned(codec().name(), "the reply", out.data());
    expect_work(codec().name(), work, scratch_bytes(elements));
    std::byte* const body = out.data() + two_bit::body_offset(elements);
    const bool dense = kind == ReplyKind::kFp32 || round.forms.dense_count > 0;
    WriteReplyUnit headers{dense ? two_bit::Form::kDense : two_bit::Form::kCodes,
                           round.payloads,
                           scale_,
                           dense ? Levels{0} : round.levels,
                           nullptr,
                           elements,
                           out.data()};
    std::size_t body_bytes = elements * sizeof(float);
    Backend backend(work.stream);
    if (dense) {
      const bool same = kind == ReplyKind::kSame;
      round.with_source([&](const auto& source) {
        encode_dense(backend, source, same ? dense::Format::kF32Finite : dense::Format::kF32,
                     same ? residual : std::span<float>(), elements, body, work.report);
      });
    } else if (kind == ReplyKind::kExact) {
      encode_planes(backend, round.codes(), elements, body);
      body_bytes = two_bit::plane_bytes(elements, ways);
    } else {
      const UnitScratch scratch(work.scratch, elements);
      choose_reply_scales(backend, round.codes(), residual, elements, scratch);
      encode_codes(backend, round.codes(), Scales{{}, scratch.scales}, two_bit::NonFinite::kSkip, residual,
                   elements, body, work.report);
      headers.requantised = scratch.scales;
      body_bytes = two_bit::packed_bytes(elements);
    }
    // Last: a reply that was made anew has the levels that its codes were made with.
    backend.each(unit_count(elements), headers);
    return two_bit::body_offset(elements) + body_bytes;
  }

  void decode_reply(const DevicePayload& reply, std::size_t ways, ReplyKind kind, float factor,
                    std::span<float> out, std::span<UnitScale> next, const DeviceWork& work) const override {
    const std::size_t elements = out.size();
    const two_bit::Form form = two_bit::check_reply(reply.host, elements, ways, kind);
    two_bit::expect_scales(next.size(), elements);
    expect_aligned(codec().name(), "the reply", reply.device);
    expect_work(codec().name(), work, 0);
    const std::size_t body = two_bit::body_offset(elements);
    const Levels levels{0, reply.device + two_bit::unit_offset(0) + offsetof(two_bit::ReplyUnit, level)};
    Backend backend(work.stream);
    if (!next.empty()) backend.each(next.size(), ReadNext{reply.device, next.data()});
    if (form == two_bit::Form::kDense) {
      decode_items(backend, DenseSumSource{dense::Format::kF32, block_of(reply), body}, factor, out);
    } else if (kind == ReplyKind::kSame) {
      decode_items(backend, CodeSumSource{block_of(reply), body, levels}, factor, out);
    } else {
      decode_planes(backend, reply.device + body, ways, levels, factor, out, work.report);
    }
  }

 private:
  /// The checked payloads of one round.
  struct Round {
    PayloadBlock payloads;
    two_bit::RoundForms forms;
    std::size_t offset;
    Levels levels;

    Round(const DevicePayloads& given, std::size_t elements)
        : payloads(block_of(given)),
          forms(two_bit::check_round(given.host, elements)),
          offset(two_bit::body_offset(elements)),
          levels{0, payloads.at(forms.levels_from) + two_bit::unit_offset(0) +
                        offsetof(two_bit::PayloadUnit, level)} {
      expect_block("2bit", given);
    }

    CodeSumSource codes() const { return {payloads, offset, levels}; }

    /// Calls use with the sum: of integers where all sent codes, else of floats in rank order.
    template <typename Use>
    void with_source(const Use& use) const {
      if (forms.dense_count == 0) return use(codes());
      if (forms.dense_count == payloads.ways)
        return use(DenseSumSource{dense::Format::kF32, payloads, offset});
      use(MixedSumSource{payloads, offset, levels});
    }
  };

  void choose_reply_scales(Backend& backend, const CodeSumSource& codes, std::span<float> residual,
                           std::size_t elements, const UnitScratch& scratch) const {
    const auto measure = [&](const UnitScale* scales) {
      measure_units(backend, codes, residual, scales, elements, scratch.measures);
    };
    measure(nullptr);
    for_each_unit(backend, scratch.measures, elements,
                  ChooseThreshold{reply_scale_, elements, scratch.scales});
    measure(scratch.scales);
    for_each_unit(backend, scratch.measures, elements, ChooseScale{reply_scale_, elements, scratch.scales});
  }

  float scale_;
  float reply_scale_;
};

/// Makes the twin of a 2bit codec, of a fixed threshold or of agreed scales.
template <typename Backend>
std::unique_ptr<DeviceCodec> make_two_bit_twin(std::unique_ptr<Codec> codec) {
  const WireParameters bits = codec->wire_parameters();
  if (codec->agrees_scales()) {
    return std::make_unique<TwoBitAutoDeviceCodec<Backend>>(std::move(codec), std::bit_cast<float>(bits[1]),
                                                            std::bit_cast<float>(bits[2]));
  }
  const auto rule = word_index(codec->spec(), "nonfinite", {"skip", "mxnet"}) == 0
                        ? two_bit::NonFinite::kSkip
                        : two_bit::NonFinite::kMxnet;
  return std::make_unique<TwoBitFixedDeviceCodec<Backend>>(std::move(codec), std::bit_cast<float>(bits[0]),
                                                           rule);
}

}  // namespace gradwire::compress
