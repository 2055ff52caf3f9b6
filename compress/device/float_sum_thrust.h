// The twin of a FloatSumCodec on any Thrust backend, but for what differs from codec to codec: its Form.
//
// A Form is a small value with
//   scratch_bytes(elements)                                    that encode() and sum() need, together
//   encode(backend, source, residual, elements, position, out, work)
//                                                              enqueues a payload of the source's values;
//                                                              position is null at a server, which draws
//                                                              nothing
//   decode(backend, payloads, factor, out)                     enqueues factor times the sum in rank order
//   sum(backend, payloads, elements, work)                     a source of that sum, which stays until
//   encode() is done
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "compress/dense/float_sum_codec.h"
#include "compress/device/dense_thrust.h"

namespace gradwire::compress {

template <typename Backend, typename Form>
class FloatSumDeviceCodec : public DeviceCodec {
 public:
  /// form is that of codec.
  FloatSumDeviceCodec(std::unique_ptr<FloatSumCodec> codec, const Form& form) noexcept
      : DeviceCodec(std::move(codec)), form_(form) {}

  std::size_t scratch_bytes(std::size_t elements) const noexcept override {
    return form_.scratch_bytes(elements);
  }

  std::size_t encode(std::span<const float> grad, std::span<float> residual, std::span<const UnitScale>,
                     std::span<std::byte> out, const Position& position,
                     const DeviceWork& work) const override {
    const std::size_t bytes = codec().max_encoded_size(grad.size());
    expect_encode_spans(codec().name(), grad.size(), residual.size(), out.size(), bytes);
    expect_aligned(codec().name(), "the payload", out.data());
    expect_work(codec().name(), work, scratch_bytes(grad.size()));
    Backend backend(work.stream);
    form_.encode(backend, FloatSource(grad.data()), residual, grad.size(), &position, out.data(), work);
    return bytes;
  }

  void decode_sum(const DevicePayloads& payloads, float factor, std::span<float> out,
                  const DeviceWork& work) const override {
    expect_payloads(payloads, out.size());
    Backend backend(work.stream);
    form_.decode(backend, block_of(payloads), factor, out);
  }

  std::size_t encode_reply(const DevicePayloads& payloads, std::size_t elements, ReplyKind kind,
                           std::span<float> residual, std::span<std::byte> out,
                           const DeviceWork& work) const override {
    if (kind == ReplyKind::kExact) {
      throw std::invalid_argument(std::string(codec().name()) +
                                  ": has no exact reply, its sums are not integers");
    }
    const std::size_t bytes = expect_reply_room(payloads, elements, kind, residual, out, work);
    Backend backend(work.stream);
    // A source: where the form allows it, payloads are summed while the reply is made, without an array for
    // the sum.
    const auto sum = form_.sum(backend, block_of(payloads), elements, work);
    if (kind == ReplyKind::kSame) {
      form_.encode(backend, sum, residual, elements, nullptr, out.data(), work);
    } else {
      encode_dense(backend, sum, dense::Format::kF32, {}, elements, out.data(), work.report);
    }
    return bytes;
  }

  void decode_reply(const DevicePayload& reply, std::size_t ways, ReplyKind kind, float factor,
                    std::span<float> out, std::span<UnitScale>, const DeviceWork& work) const override {
    // The host's copy is checked, with the CPU codec's messages: kernels read what is known to be whole.
    host_codec().expect_reply(reply.host, ways, kind, out.size());
    expect_aligned(codec().name(), "the reply", reply.device);
    Backend backend(work.stream);
    if (kind == ReplyKind::kSame) {
      form_.decode(backend, block_of(reply), factor, out);
    } else {
      decode_items(backend, DenseSumSource{dense::Format::kF32, block_of(reply), 0}, factor, out);
    }
  }

 protected:
  const FloatSumCodec& host_codec() const noexcept { return static_cast<const FloatSumCodec&>(codec()); }
  const Form& form() const noexcept { return form_; }

  void expect_payloads(const DevicePayloads& payloads, std::size_t elements) const {
    expect_ways(codec().name(), payloads.host.size());
    host_codec().expect_payloads(payloads.host, elements);
    expect_block(codec().name(), payloads);
  }

  /// Checks a call of encode_reply() and returns the reply's length.
  std::size_t expect_reply_room(const DevicePayloads& payloads, std::size_t elements, ReplyKind kind,
                                std::span<float> residual, std::span<std::byte> out,
                                const DeviceWork& work) const {
    expect_payloads(payloads, elements);
    const std::size_t bytes = codec().max_reply_size(elements, payloads.host.size(), kind);
    expect_encode_spans(codec().name(), elements, residual.size(), out.size(), bytes);
    expect_aligned(codec().name(), "the reply", out.data());
    expect_work(codec().name(), work, scratch_bytes(elements));
    return bytes;
  }

 private:
  Form form_;
};

}  // namespace gradwire::compress
