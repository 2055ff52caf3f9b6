#include "compress/float64_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "compress/payload/little_endian.h"
#include "compress/payload/payloads.h"

namespace gradwire::compress {
namespace {

constexpr std::string_view kName = "none";

double element(Payload payload, std::size_t i) { return load<double>(payload.data() + i * sizeof(double)); }

constexpr std::size_t kTileElements = 1024;

/// Calls use(first, sums) tile by tile; sums are added in rank order, as all sums of floats.
template <typename Use>
void for_each_tile_of_sums(std::span<const Payload> payloads, std::size_t elements, const Use& use) {
  alignas(64) double sums[kTileElements];
  for (std::size_t first = 0; first < elements; first += kTileElements) {
    const std::size_t length = std::min(kTileElements, elements - first);
    const std::size_t offset = first * sizeof(double);
    // The first is copied and not added to 0, which would make +0 of -0.
    std::memcpy(sums, payloads.front().data() + offset, length * sizeof(double));
    for (const Payload& payload : payloads.subspan(1)) {
      const std::byte* const from = payload.data() + offset;
      for (std::size_t i = 0; i < length; ++i) sums[i] += load<double>(from + i * sizeof(double));
    }
    use(first, std::span<const double>(sums, length));
  }
}

void expect_payloads(std::span<const Payload> payloads, std::size_t elements) {
  expect_ways(kName, payloads.size());
  expect_payload_bytes(kName, payloads, elements * sizeof(double), elements);
}

}  // namespace

std::size_t Float64Codec::max_reply_size(std::size_t elements, std::size_t, ReplyKind kind) const noexcept {
  return elements * (kind == ReplyKind::kSame ? sizeof(double) : sizeof(float));
}

Encoded Float64Codec::encode(std::span<const float> grad, std::span<float> residual,
                             std::span<const UnitScale>, std::span<std::byte> out, const Position&) const {
  const std::size_t bytes = max_encoded_size(grad.size());
  expect_encode_spans(kName, grad.size(), residual.size(), out.size(), bytes);
  bool nonfinite = false;
  for (std::size_t i = 0; i < grad.size(); ++i) {
    nonfinite |= !std::isfinite(grad[i]);
    store(static_cast<double>(grad[i]), out.data() + i * sizeof(double));
  }
  return {bytes, nonfinite};
}

void Float64Codec::decode_sum(std::span<const Payload> payloads, std::span<float> out) const {
  expect_payloads(payloads, out.size());
  for_each_tile_of_sums(payloads, out.size(), [out](std::size_t first, std::span<const double> sums) {
    for (std::size_t i = 0; i < sums.size(); ++i) out[first + i] = static_cast<float>(sums[i]);
  });
}

void Float64Codec::validate(Payload payload, std::size_t elements) const {
  expect_bytes(kName, "the payload", payload.size(), max_encoded_size(elements), elements);
}

Encoded Float64Codec::encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                                   std::span<float> residual, std::span<std::byte> out) const {
  if (kind == ReplyKind::kExact)
    throw std::invalid_argument("none: has no exact reply, its sums are not integers");
  expect_payloads(payloads, elements);
  const std::size_t bytes = max_reply_size(elements, payloads.size(), kind);
  expect_encode_spans(kName, elements, residual.size(), out.size(), bytes);
  bool nonfinite = false;
  for_each_tile_of_sums(payloads, elements, [&](std::size_t first, std::span<const double> sums) {
    for (const double sum : sums) nonfinite |= !std::isfinite(sum);
    if (kind == ReplyKind::kSame) {
      std::memcpy(out.data() + first * sizeof(double), sums.data(), sums.size_bytes());
      return;
    }
    for (std::size_t i = 0; i < sums.size(); ++i)
      store(static_cast<float>(sums[i]), out.data() + (first + i) * sizeof(float));
  });
  return {bytes, nonfinite};
}

void Float64Codec::decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                                std::span<UnitScale>) const {
  if (kind == ReplyKind::kExact) throw DecodeError("none: has no exact reply");
  expect_bytes(kName, "the reply", reply.size(), max_reply_size(out.size(), ways, kind), out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = kind == ReplyKind::kSame ? static_cast<float>(element(reply, i))
                                      : load<float>(reply.data() + i * sizeof(float));
  }
}

void Float64Codec::decode_reply(Payload reply, ReplyKind kind, double scale, std::span<double> out) const {
  if (kind == ReplyKind::kExact) throw DecodeError("none: has no exact reply");
  expect_bytes(kName, "the reply", reply.size(), max_reply_size(out.size(), 1, kind), out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double sum =
        kind == ReplyKind::kSame ? element(reply, i) : double{load<float>(reply.data() + i * sizeof(float))};
    out[i] = scale == 1 ? sum : sum * scale;  // 1 keeps a NaN's bits
  }
}

}  // namespace gradwire::compress
