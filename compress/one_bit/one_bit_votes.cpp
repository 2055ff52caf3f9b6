#include "compress/one_bit/one_bit_votes.h"

#include <algorithm>
#include <bit>

#include "compress/one_bit/bit_plane_counters.h"
#include "compress/one_bit/one_bit_kernels.h"
#include "compress/payload/payloads.h"

namespace gradwire::compress {
namespace {

constexpr std::size_t kVotesTileElements = 4096;

}  // namespace

OneBitVotes::OneBitVotes(float threshold) noexcept
    : FloatSumCodec("1bit", WireId::kOneBit, kVotesTileElements), threshold_(threshold) {}

WireParameters OneBitVotes::wire_parameters() const noexcept {
  return {std::bit_cast<std::uint32_t>(threshold_), 0, 0, 0};
}

CodecSpec OneBitVotes::spec() const {
  return {"1bit", {{"threshold", static_cast<double>(threshold_)}, {"nonfinite", "skip"}}};
}

std::size_t OneBitVotes::max_encoded_size(std::size_t elements) const noexcept {
  return one_bit::packed_bytes(elements);
}

std::size_t OneBitVotes::max_reply_size(std::size_t elements, std::size_t ways,
                                        ReplyKind kind) const noexcept {
  if (kind == ReplyKind::kExact) return one_bit::plane_bytes(elements, ways);
  return FloatSumCodec::max_reply_size(elements, ways, kind);
}

bool OneBitVotes::encode_run(const float* grad, float* residual, const Run& run, const Position*,
                             std::byte* out) const {
  return one_bit::encode(grad, residual, run.length, {one_bit::above(threshold_), 1}, out + run.first / 8);
}

void OneBitVotes::decode_run(Payload payload, const Run& run, bool add, float* out) const {
  one_bit::decode(payload.data() + run.first / 8, run.length, {}, add, out);
}

Encoded OneBitVotes::encode_majority(std::span<const Payload> payloads, std::size_t elements, float* residual,
                                     std::byte* out) const {
  const auto level = static_cast<float>(payloads.size());
  alignas(64) float sums[kVotesTileElements];
  bool nonfinite = false;
  for (std::size_t i = 0; i < elements; i += kVotesTileElements) {
    const Run tile{i, std::min(kVotesTileElements, elements - i), elements};
    sum_run(payloads, tile, sums);
    nonfinite |= one_bit::encode(sums, residual == nullptr ? nullptr : residual + i, tile.length,
                                 {one_bit::above(0), level}, out + i / 8);
  }
  return {one_bit::packed_bytes(elements), nonfinite};
}

Encoded OneBitVotes::encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                                  std::span<float> residual, std::span<std::byte> out) const {
  if (kind == ReplyKind::kFp32) {
    return FloatSumCodec::encode_reply(payloads, elements, kind, residual, out);
  }
  expect_ways(name(), payloads.size());
  expect_payloads(payloads, elements);
  const std::size_t bytes = max_reply_size(elements, payloads.size(), kind);
  expect_encode_spans(name(), elements, residual.size(), out.size(), bytes);
  if (kind == ReplyKind::kSame) {
    return encode_majority(payloads, elements, residual.empty() ? nullptr : residual.data(), out.data());
  }
  one_bit::votes_to_planes(payloads, elements, out.data());
  return {bytes, false};
}

void OneBitVotes::decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                               std::span<UnitScale> next) const {
  if (kind == ReplyKind::kFp32) return FloatSumCodec::decode_reply(reply, ways, kind, out, next);
  expect_ways(name(), ways);
  expect_bytes(name(), "the reply", reply.size(), max_reply_size(out.size(), ways, kind), out.size());
  if (kind == ReplyKind::kSame) {
    return one_bit::decode(reply.data(), out.size(), {0, static_cast<float>(ways)}, false, out.data());
  }
  // k + N, of which a reply holds the half, as the counts of every exact reply are named.
  expect_counts(name(), 2 * one_bit::planes_to_sums(reply.data(), ways, out.size(), out.data()), ways);
}

}  // namespace gradwire::compress
