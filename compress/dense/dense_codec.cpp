#include "compress/dense/dense_codec.h"

#include <algorithm>
#include <stdexcept>

#include "compress/dense/dense_kernels.h"
#include "compress/payload/payloads.h"

namespace gradwire::compress {
namespace {

using dense::Format;

constexpr std::size_t kTileElements = 2048;

}  // namespace

CodecSpec DenseCodec::spec() const {
  if (!lossy()) return {std::string(name_), {}};
  return {std::string(name_), {{"nonfinite", "skip"}}};
}

std::size_t DenseCodec::max_encoded_size(std::size_t elements) const noexcept {
  return elements * dense::bytes_per_element(format_);
}

Encoded DenseCodec::encode(std::span<const float> grad, std::span<float> residual, std::span<const UnitScale>,
                           std::span<std::byte> out, const Position&) const {
  const std::size_t bytes = max_encoded_size(grad.size());
  expect_encode_spans(name_, grad.size(), residual.size(), out.size(), bytes);
  return {bytes, dense::encode(format_, grad.data(), data_or_null(residual), grad.size(), out.data())};
}

Encoded DenseCodec::encode_bf16(std::span<const float> grad, std::span<std::byte> residual,
                                std::span<std::byte> out, const Position&) const {
  const std::size_t bytes = max_encoded_size(grad.size());
  expect_bf16_spans(name_, grad.size(), residual.size(), out.size(), bytes);
  return {bytes, dense::encode_bf16(format_, grad.data(), residual.data(), grad.size(), out.data())};
}

void DenseCodec::decode_sum(std::span<const Payload> payloads, std::span<float> out) const {
  expect_ways(name_, payloads.size());
  expect_payload_bytes(name_, payloads, max_encoded_size(out.size()), out.size());
  dense::sum(format_, payloads, 0, out.size(), out.data());
}

void DenseCodec::validate(Payload payload, std::size_t elements) const {
  expect_bytes(name_, "the payload", payload.size(), max_encoded_size(elements), elements);
}

std::size_t DenseCodec::max_reply_size(std::size_t elements, std::size_t, ReplyKind kind) const noexcept {
  return elements * (kind == ReplyKind::kSame ? dense::bytes_per_element(format_) : sizeof(float));
}

Encoded DenseCodec::encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                                 std::span<float> residual, std::span<std::byte> out) const {
  if (kind == ReplyKind::kExact) {
    throw std::invalid_argument(std::string(name_) + ": has no exact reply, its sums are not integers");
  }
  expect_ways(name_, payloads.size());
  expect_payload_bytes(name_, payloads, max_encoded_size(elements), elements);
  const Format format = kind == ReplyKind::kSame ? format_ : Format::kF32;
  const std::size_t width = dense::bytes_per_element(format);
  expect_encode_spans(name_, elements, residual.size(), out.size(), elements * width);
  float* const kept = format == Format::kF32 ? nullptr : data_or_null(residual);
  bool nonfinite = false;
  alignas(64) float sums[kTileElements];
  for (std::size_t i = 0; i < elements; i += kTileElements) {
    const std::size_t length = std::min(kTileElements, elements - i);
    dense::sum(format_, payloads, max_encoded_size(i), length, sums);
    nonfinite |=
        dense::encode(format, sums, kept == nullptr ? nullptr : kept + i, length, out.data() + i * width);
  }
  return {elements * width, nonfinite};
}

void DenseCodec::decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                              std::span<UnitScale> next) const {
  decode_reply_scaled(reply, ways, kind, 1, out, next);
}

void DenseCodec::decode_reply_scaled(Payload reply, std::size_t ways, ReplyKind kind, float scale,
                                     std::span<float> out, std::span<UnitScale>) const {
  if (kind == ReplyKind::kExact) throw DecodeError(std::string(name_) + ": has no exact reply");
  expect_bytes(name_, "the reply", reply.size(), max_reply_size(out.size(), ways, kind), out.size());
  dense::decode(kind == ReplyKind::kSame ? format_ : Format::kF32, reply.data(), out.size(), scale,
                out.data());
}

}  // namespace gradwire::compress
