// The twin of TwoBitFixed on any Thrust backend, and the codes that threshold=auto shares.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "compress/device/bit_planes_thrust.h"
#include "compress/device/dense_thrust.h"
#include "compress/two_bit/two_bit_scalar.h"

namespace gradwire::compress {

/// The scale of each unit: one for all, or one entry each.
struct Scales {
  UnitScale fixed;
  const UnitScale* per_unit = nullptr;

  GRADWIRE_HOST_DEVICE UnitScale at_unit(std::size_t unit) const noexcept {
    return per_unit == nullptr ? fixed : per_unit[unit];
  }
};

/// Encodes four elements into one byte of codes, as two_bit::encode_scalar() does.
struct CodesOfFour {
  unsigned codes = 0;
  bool nonfinite = false;

  /// Takes x of element j, which exists; kept becomes what x keeps.
  GRADWIRE_HOST_DEVICE unsigned take(std::size_t j, float x, float threshold, float level,
                                     two_bit::NonFinite rule, float& kept) {
    const bool finite = is_finite(x);
    nonfinite |= !finite;
    if (!finite && rule == two_bit::NonFinite::kSkip) return 0;
    const unsigned code = two_bit::code_of(x, threshold);
    codes |= code << two_bit::code_shift(j);
    kept = two_bit::rest_of(x, code, level);
    return code;
  }
};

/// Encodes an item of the source.
template <typename Source>
struct EncodeCodes {
  Source source;
  Scales scales;
  two_bit::NonFinite nonfinite_rule;
  Residual residual;
  std::size_t elements;
  std::byte* out;
  DeviceReport* report;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item * kItemElements;
    // The payload is whole words of codes, and has a byte for items behind the last element.
    if (first >= elements) {
      out[item] = std::byte{0};
      return;
    }
    const std::size_t count = item_elements(elements, first);
    const UnitScale scale = scales.at_unit(first / kUnitElements);
    const float threshold = two_bit::Quantiser{scale.threshold, scale.level}.effective_threshold();
    const Four values = source.four(first, count);
    Four kept = residual.load(first, count);
    CodesOfFour four;
    for (std::size_t j = 0; j < kItemElements; ++j) {
      if (j >= count) continue;
      four.take(j, residual.add(kept.x[j], values.x[j]), threshold, scale.level, nonfinite_rule, kept.x[j]);
    }
    out[item] = static_cast<std::byte>(four.codes);
    residual.store(kept, first, count);
    if (four.nonfinite) report_value(report->nonfinite, 1);
  }
};

template <typename Backend, typename Source>
void encode_codes(Backend& backend, const Source& source, const Scales& scales, two_bit::NonFinite rule,
                  std::span<float> residual, std::size_t elements, std::byte* out, DeviceReport* report) {
  // An item is one byte of codes: four elements, never of two units.
  backend.each(two_bit::packed_bytes(elements),
               EncodeCodes<Source>{source, scales, rule, Residual(residual), elements, out, report});
}

template <typename Backend>
class TwoBitFixedDeviceCodec final : public DeviceCodec {
 public:
  /// codec is a TwoBitFixed of this threshold and rule.
  TwoBitFixedDeviceCodec(std::unique_ptr<Codec> codec, float threshold, two_bit::NonFinite rule) noexcept
      : DeviceCodec(std::move(codec)), threshold_(threshold), rule_(rule) {}

  std::size_t scratch_bytes(std::size_t) const noexcept override { return 0; }

  std::size_t encode(std::span<const float> grad, std::span<float> residual, std::span<const UnitScale>,
                     std::span<std::byte> out, const Position&, const DeviceWork& work) const override {
    const std::size_t bytes = codec().max_encoded_size(grad.size());
    expect_encode_spans(codec().name(), grad.size(), residual.size(), out.size(), bytes);
    expect_aligned(codec().name(), "the payload", out.data());
    expect_work(codec().name(), work, 0);
    Backend backend(work.stream);
    encode_codes(backend, FloatSource(grad.data()), Scales{{threshold_, threshold_}}, rule_, residual,
                 grad.size(), out.data(), work.report);
    return bytes;
  }

  void decode_sum(const DevicePayloads& payloads, float factor, std::span<float> out,
                  const DeviceWork& work) const override {
    expect_round(codec(), payloads, out.size());
    Backend backend(work.stream);
    decode_items(backend, codes_of(block_of(payloads), threshold_), factor, out);
  }

  std::size_t encode_reply(const DevicePayloads& payloads, std::size_t elements, ReplyKind kind,
                           std::span<float> residual, std::span<std::byte> out,
                           const DeviceWork& work) const override {
    expect_round(codec(), payloads, elements);
    const std::size_t ways = payloads.host.size();
    const std::size_t bytes = codec().max_reply_size(elements, ways, kind);
    expect_encode_spans(codec().name(), elements, residual.size(), out.size(), bytes);
    expect_aligned(codec().name(), "the reply", out.data());
    expect_work(codec().name(), work, 0);
    const CodeSumSource codes = codes_of(block_of(payloads), threshold_);
    Backend backend(work.stream);
    if (kind == ReplyKind::kExact) {
      encode_planes(backend, codes, elements, out.data());
    } else if (kind == ReplyKind::kSame) {
      const float level = two_bit::reply_level(threshold_, ways);
      encode_codes(backend, codes, Scales{{level / 2, level}}, two_bit::NonFinite::kSkip, residual, elements,
                   out.data(), work.report);
    } else {
      encode_dense(backend, codes, dense::Format::kF32, {}, elements, out.data(), work.report);
    }
    return bytes;
  }

  void decode_reply(const DevicePayload& reply, std::size_t ways, ReplyKind kind, float factor,
                    std::span<float> out, std::span<UnitScale>, const DeviceWork& work) const override {
    expect_ways(codec().name(), ways);
    expect_bytes(codec().name(), "the reply", reply.host.size(),
                 codec().max_reply_size(out.size(), ways, kind), out.size());
    expect_aligned(codec().name(), "the reply", reply.device);
    expect_work(codec().name(), work, 0);
    Backend backend(work.stream);
    if (kind == ReplyKind::kExact) {
      decode_planes(backend, reply.device, ways, Levels{threshold_}, factor, out, work.report);
    } else if (kind == ReplyKind::kSame) {
      decode_items(backend, codes_of(block_of(reply), two_bit::reply_level(threshold_, ways)), factor, out);
    } else {
      decode_items(backend, DenseSumSource{dense::Format::kF32, block_of(reply), 0}, factor, out);
    }
  }

 private:
  static CodeSumSource codes_of(const PayloadBlock& payloads, float level) {
    return {payloads, 0, Levels{level}};
  }

  float threshold_;
  two_bit::NonFinite rule_;
};

}  // namespace gradwire::compress
