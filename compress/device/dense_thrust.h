// The twin of DenseCodec on any Thrust backend, and the two work items that all twins share: elements to a
// dense body, and values to floats.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "compress/dense/dense_scalar.h"
#include "compress/device/device_codec.h"
#include "compress/device/device_loader.h"
#include "compress/device/four_elements.h"
#include "compress/device/thrust_items.h"
#include "compress/payload/payloads.h"

namespace gradwire::compress {

/// A residual, or none, by items.
struct Residual {
  float* values;
  bool whole;

  explicit Residual(float* floats) noexcept : values(floats), whole(moves_whole(floats)) {}
  explicit Residual(std::span<float> floats) noexcept : Residual(floats.empty() ? nullptr : floats.data()) {}

  GRADWIRE_HOST_DEVICE Four load(std::size_t first, std::size_t count) const noexcept {
    return values == nullptr ? Four{} : load_four(values + first, count, whole);
  }
  GRADWIRE_HOST_DEVICE void store(const Four& kept, std::size_t first, std::size_t count) const noexcept {
    if (values != nullptr) store_four(kept, count, whole, values + first);
  }
  /// Residual + value, or the value alone, which keeps its bits.
  GRADWIRE_HOST_DEVICE float add(float kept, float value) const noexcept {
    // Not value + 0, which would make +0 of -0.
    return values == nullptr ? value : kept + value;
  }
};

/// What an item that begins at element `first` encodes: `count` elements, none from `end` on; the others are
/// 0.
struct ItemInput {
  Four values{};
  Four kept{};
  std::uint32_t count = 0;
};

template <typename Source>
GRADWIRE_HOST_DEVICE ItemInput read_item(const Source& source, const Residual& residual, std::size_t first,
                                         std::size_t end) {
  if (first >= end) return {};
  const std::size_t count = item_elements(end, first);
  return {source.four(first, count), residual.load(first, count), static_cast<std::uint32_t>(count)};
}

/// Encodes an item of the source as dense::encode_scalar() does.
template <typename Source>
struct EncodeDense {
  Source source;
  dense::Format format;
  Residual residual;
  std::size_t elements;
  std::byte* out;
  DeviceReport* report;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item * kItemElements;
    // Elements that an item lacks are read as 0, and neither written nor reported.
    const std::size_t count = item_elements(elements, first);
    const Four values = source.four(first, count);
    Four kept = residual.load(first, count);
    dense::FourBits bits;
    bool beyond = false;
    for (std::size_t j = 0; j < kItemElements; ++j) {
      const dense::Element element =
          dense::encode_element(format, residual.add(kept.x[j], values.x[j]), kept.x[j]);
      bits.bits[j] = element.bits;
      kept.x[j] = element.kept;
      beyond |= element.beyond && j < count;
    }
    const std::size_t width = dense::bytes_per_element(format);
    dense::store_bits(bits, width, count, out + first * width);
    residual.store(kept, first, count);
    if (beyond) report_value(report->nonfinite, 1);
  }
};

/// Writes factor times the source's values.
template <typename Source>
struct DecodeItem {
  Source source;
  float factor;
  std::size_t elements;
  float* out;
  bool whole = moves_whole(out);

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item * kItemElements;
    const std::size_t count = item_elements(elements, first);
    Four values = source.four(first, count);
    for (float& value : values.x) value *= factor;
    store_four(values, count, whole, out + first);
  }
};

/// Enqueues what a payload or reply of dense form holds behind its headers.
template <typename Backend, typename Source>
void encode_dense(Backend& backend, const Source& source, dense::Format format, std::span<float> residual,
                  std::size_t elements, std::byte* out, DeviceReport* report) {
  backend.each(item_count(elements),
               EncodeDense<Source>{source, format, Residual(residual), elements, out, report});
}

template <typename Backend, typename Source>
void decode_items(Backend& backend, const Source& source, float factor, std::span<float> out) {
  backend.each(item_count(out.size()), DecodeItem<Source>{source, factor, out.size(), out.data()});
}

template <typename Backend>
class DenseDeviceCodec final : public DeviceCodec {
 public:
  /// codec is none, fp16 or bf16, and format its format.
  DenseDeviceCodec(std::unique_ptr<Codec> codec, dense::Format format) noexcept
      : DeviceCodec(std::move(codec)), format_(format) {}

  std::size_t scratch_bytes(std::size_t) const noexcept override { return 0; }

  std::size_t encode(std::span<const float> grad, std::span<float> residual, std::span<const UnitScale>,
                     std::span<std::byte> out, const Position&, const DeviceWork& work) const override {
    const std::size_t bytes = codec().max_encoded_size(grad.size());
    expect_encode_spans(codec().name(), grad.size(), residual.size(), out.size(), bytes);
    expect_aligned(codec().name(), "the payload", out.data());
    expect_work(codec().name(), work, 0);
    Backend backend(work.stream);
    encode_dense(backend, FloatSource(grad.data()), format_, residual, grad.size(), out.data(), work.report);
    return bytes;
  }

  void decode_sum(const DevicePayloads& payloads, float factor, std::span<float> out,
                  const DeviceWork& work) const override {
    expect_round(codec(), payloads, out.size());
    Backend backend(work.stream);
    decode_items(backend, DenseSumSource{format_, block_of(payloads), 0}, factor, out);
  }

  std::size_t encode_reply(const DevicePayloads& payloads, std::size_t elements, ReplyKind kind,
                           std::span<float> residual, std::span<std::byte> out,
                           const DeviceWork& work) const override {
    if (kind == ReplyKind::kExact) {
      throw std::invalid_argument(std::string(codec().name()) +
                                  ": has no exact reply, its sums are not integers");
    }
    expect_round(codec(), payloads, elements);
    const std::size_t bytes = codec().max_reply_size(elements, payloads.host.size(), kind);
    expect_encode_spans(codec().name(), elements, residual.size(), out.size(), bytes);
    expect_aligned(codec().name(), "the reply", out.data());
    expect_work(codec().name(), work, 0);
    const dense::Format format = kind == ReplyKind::kSame ? format_ : dense::Format::kF32;
    Backend backend(work.stream);
    encode_dense(backend, DenseSumSource{format_, block_of(payloads), 0}, format,
                 format == dense::Format::kF32 ? std::span<float>() : residual, elements, out.data(),
                 work.report);
    return bytes;
  }

  void decode_reply(const DevicePayload& reply, std::size_t ways, ReplyKind kind, float factor,
                    std::span<float> out, std::span<UnitScale>, const DeviceWork& work) const override {
    if (kind == ReplyKind::kExact) throw DecodeError(std::string(codec().name()) + ": has no exact reply");
    expect_bytes(codec().name(), "the reply", reply.host.size(),
                 codec().max_reply_size(out.size(), ways, kind), out.size());
    expect_aligned(codec().name(), "the reply", reply.device);
    Backend backend(work.stream);
    decode_items(backend,
                 DenseSumSource{kind == ReplyKind::kSame ? format_ : dense::Format::kF32, block_of(reply), 0},
                 factor, out);
  }

 private:
  dense::Format format_;
};

/// Makes the twin of none, fp16 or bf16.
template <typename Backend>
std::unique_ptr<DeviceCodec> make_dense_twin(std::unique_ptr<Codec> codec) {
  const WireId id = codec->wire_id();
  const dense::Format format = id == WireId::kFp16   ? dense::Format::kF16
                               : id == WireId::kBf16 ? dense::Format::kBf16
                                                     : dense::Format::kF32;
  return std::make_unique<DenseDeviceCodec<Backend>>(std::move(codec), format);
}

}  // namespace gradwire::compress
