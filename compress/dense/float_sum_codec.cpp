#include "compress/dense/float_sum_codec.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "compress/dense/dense_kernels.h"
#include "compress/payload/payloads.h"

namespace gradwire::compress {
namespace {

/// One unit of sums. Too long for the stack of any thread, and allocated once for each that needs it.
float* unit_of_sums() {
  thread_local std::vector<float> sums(kUnitElements);
  return sums.data();
}

}  // namespace

void FloatSumCodec::expect_payloads(std::span<const Payload> payloads, std::size_t elements) const {
  // These codecs have one length for a number of elements, so lengths are compared before any content is
  // read.
  expect_payload_bytes(name_, payloads, max_encoded_size(elements), elements);
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    const std::string wrong = fault(payloads[i], elements);
    if (wrong.empty()) continue;
    throw DecodeError(std::string(name_) + ": " + payload_name(i, payloads.size()) + ": " + wrong);
  }
}

void FloatSumCodec::validate(Payload payload, std::size_t elements) const {
  expect_bytes(name_, "the payload", payload.size(), max_encoded_size(elements), elements);
  const std::string wrong = fault(payload, elements);
  if (!wrong.empty()) throw DecodeError(std::string(name_) + ": the payload: " + wrong);
}

Encoded FloatSumCodec::encode(std::span<const float> grad, std::span<float> residual,
                              std::span<const UnitScale>, std::span<std::byte> out,
                              const Position& position) const {
  const std::size_t bytes = max_encoded_size(grad.size());
  expect_encode_spans(name_, grad.size(), residual.size(), out.size(), bytes);
  return {bytes, encode_run(grad.data(), data_or_null(residual), {0, grad.size(), grad.size()}, &position,
                            out.data())};
}

/// Tile by tile, so that what is added to is still in the cache.
void FloatSumCodec::sum_run(std::span<const Payload> payloads, const Run& run, float* out) const {
  for (std::size_t i = 0; i < run.length; i += tile_elements_) {
    const Run tile{run.first + i, std::min(tile_elements_, run.length - i), run.elements};
    for (std::size_t way = 0; way < payloads.size(); ++way) {
      decode_run(payloads[way], tile, way > 0, out + i);
    }
  }
}

void FloatSumCodec::decode_sum(std::span<const Payload> payloads, std::span<float> out) const {
  expect_ways(name_, payloads.size());
  expect_payloads(payloads, out.size());
  sum_run(payloads, {0, out.size(), out.size()}, out.data());
}

std::size_t FloatSumCodec::max_reply_size(std::size_t elements, std::size_t, ReplyKind kind) const noexcept {
  return kind == ReplyKind::kSame ? max_encoded_size(elements) : elements * sizeof(float);
}

bool FloatSumCodec::encode_sums(std::span<const Payload> payloads, std::size_t elements, float* residual,
                                std::byte* out) const {
  float* const sums = unit_of_sums();
  bool nonfinite = false;
  // A codec unit at a time, which encode_run() needs whole.
  for (std::size_t i = 0; i < elements; i += kUnitElements) {
    const Run unit{i, std::min(kUnitElements, elements - i), elements};
    sum_run(payloads, unit, sums);
    // No position: a server draws no random numbers (README).
    nonfinite |= encode_run(sums, residual == nullptr ? nullptr : residual + i, unit, nullptr, out);
  }
  return nonfinite;
}

Encoded FloatSumCodec::encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                                    std::span<float> residual, std::span<std::byte> out) const {
  if (kind == ReplyKind::kExact) {
    throw std::invalid_argument(std::string(name_) + ": has no exact reply, its sums are not integers");
  }
  expect_ways(name_, payloads.size());
  expect_payloads(payloads, elements);
  const std::size_t bytes = max_reply_size(elements, payloads.size(), kind);
  expect_encode_spans(name_, elements, residual.size(), out.size(), bytes);
  if (kind == ReplyKind::kSame) {
    return {bytes, encode_sums(payloads, elements, data_or_null(residual), out.data())};
  }
  float* const sums = unit_of_sums();
  bool nonfinite = false;
  for (std::size_t i = 0; i < elements; i += tile_elements_) {
    const Run tile{i, std::min(tile_elements_, elements - i), elements};
    sum_run(payloads, tile, sums);
    nonfinite |=
        dense::encode(dense::Format::kF32, sums, nullptr, tile.length, out.data() + i * sizeof(float));
  }
  return {bytes, nonfinite};
}

void FloatSumCodec::expect_reply(Payload reply, std::size_t ways, ReplyKind kind,
                                 std::size_t elements) const {
  expect_ways(name_, ways);
  if (kind == ReplyKind::kExact) throw DecodeError(std::string(name_) + ": has no exact reply");
  expect_bytes(name_, "the reply", reply.size(), max_reply_size(elements, ways, kind), elements);
  // Any bits are floats.
  if (kind == ReplyKind::kFp32) return;
  const std::string wrong = fault(reply, elements);
  if (!wrong.empty()) throw DecodeError(std::string(name_) + ": the reply: " + wrong);
}

void FloatSumCodec::decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                                 std::span<UnitScale>) const {
  expect_reply(reply, ways, kind, out.size());
  if (kind == ReplyKind::kFp32) {
    dense::sum(dense::Format::kF32, {&reply, 1}, 0, out.size(), out.data());
    return;
  }
  sum_run({&reply, 1}, {0, out.size(), out.size()}, out.data());
}

}  // namespace gradwire::compress
