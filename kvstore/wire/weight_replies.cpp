#include "kvstore/wire/weight_replies.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "compress/codecs.h"
#include "compress/dense/dense_scalar.h"

namespace gradwire::kvstore {
namespace {

using transport::Buffer;
using transport::BufferPool;

constexpr std::string_view kDelta = "delta:";

/// Throws unless what this codec makes of differences adds up to them.
void require_makes_deltas(const compress::CodecSpec& spec, const compress::Codec& codec) {
  const auto refuse = [&](std::string_view why) {
    throw std::invalid_argument(fmt::format("weights=delta:{}: {}", spec.name, why));
  };
  if (!codec.lossy()) refuse("it leaves nothing out, so send weights as they are: weights=fp32");
  if (codec.agrees_scales())
    refuse("it takes its scale from the sums of rounds, and weights have none; give a threshold");
  const auto is_threshold = [](const compress::Parameter& given) { return given.name == "threshold"; };
  if (codec.wire_id() == compress::WireId::kTwoBit && std::ranges::none_of(spec.parameters, is_threshold))
    refuse("its threshold is for gradients unless given; give the most that a weight moves by in a round");
  if (compress::keeps_nonfinite(codec))
    refuse(
        "nonfinite=mxnet is for residuals of gradients; leave it out, weights that are not finite are sent "
        "whole");
  if (codec.wants_lossless_stage()) refuse("lossless=on is for gradients; leave it out");
  const std::array<float, 4> still{};
  std::array<float, 4> moved{};
  std::vector<std::byte> payload(codec.max_encoded_size(still.size()));
  payload.resize(codec.encode(still, {}, {}, payload).bytes);
  codec.decode(payload, moved);
  if (moved != still) refuse("it would move a weight that stands still; take another codec, such as int8");
}

/// Room for what one pass makes of a partition; each thread that needs it has its own.
std::span<float> scratch(std::size_t elements) {
  thread_local std::vector<float> floats;
  if (floats.size() < elements) floats.resize(elements);
  return std::span(floats).first(elements);
}

float largest_of(const compress::Codec& codec) {
  return codec.wire_id() == compress::WireId::kFp16
             ? compress::dense::float_from_f16(0x7bff)
             : compress::dense::float_from_bf16(static_cast<std::uint16_t>(compress::dense::kBf16Largest));
}

/// No NaN does.
bool fits(float value, float largest) { return std::fabs(value) <= largest; }

/// Encodes weight - held to payload. Returns its bytes; nothing, and held as it was, where a difference is
/// not finite.
std::optional<std::size_t> encode_finite(const compress::Codec& codec, std::span<const float> weight,
                                         const compress::Position& position, std::span<float> held,
                                         std::span<std::byte> payload) {
  const std::span<float> difference = scratch(weight.size());
  std::ranges::transform(weight, held, difference.begin(), std::minus());
  const compress::Encoded encoded = codec.encode(difference, {}, {}, payload, position);
  if (encoded.nonfinite) return std::nullopt;
  add_delta(codec, payload.first(encoded.bytes), held);
  return encoded.bytes;
}

}  // namespace

WeightReplies::WeightReplies(std::string_view text) : text_(text) {
  if (text == "fp32") return;
  if (text == "fp16" || text == "bf16") {
    form_ = Form::kRounded;
    codec_ = compress::make({text_, {}});
    return;
  }
  if (!text.starts_with(kDelta) || text == kDelta) {
    throw std::invalid_argument(
        fmt::format("weights='{}' is unknown; valid are fp32, fp16, bf16 and delta:CODEC, as delta:int8 or "
                    "delta:topk:ratio=0.05",
                    text));
  }
  const compress::CodecSpec spec = compress::parse_spec(text.substr(kDelta.size()));
  form_ = Form::kDeltas;
  codec_ = compress::make(spec);
  require_makes_deltas(spec, *codec_);
  text_ = std::string(kDelta) + compress::canonical_spec(spec);
}

std::optional<Buffer> round_weight(const compress::Codec& codec, std::span<const float> weight,
                                   BufferPool& pool) {
  const float largest = largest_of(codec);
  if (!std::ranges::all_of(weight, [largest](float value) { return fits(value, largest); }))
    return std::nullopt;
  Buffer out = pool.take(codec.max_encoded_size(weight.size()));
  out.truncate(codec.encode(weight, {}, {}, out.bytes()).bytes);
  return out;
}

std::vector<float> round_what_fits(const compress::Codec& codec, std::span<const float> weight) {
  const float largest = largest_of(codec);
  std::vector<float> rounded(weight.begin(), weight.end());
  std::ranges::replace_if(
      rounded, [largest](float value) { return !fits(value, largest); }, 0.0F);
  std::vector<std::byte> payload(codec.max_encoded_size(weight.size()));
  payload.resize(codec.encode(rounded, {}, {}, payload).bytes);
  codec.decode(payload, rounded);
  for (std::size_t i = 0; i < weight.size(); ++i) {
    if (!fits(weight[i], largest)) rounded[i] = weight[i];
  }
  return rounded;
}

std::optional<Buffer> encode_delta(const compress::Codec& codec, std::span<const float> weight,
                                   const compress::Position& position, std::span<float> held,
                                   BufferPool& pool) {
  Buffer out = pool.take(codec.max_encoded_size(weight.size()));
  if (const auto bytes = encode_finite(codec, weight, position, held, out.bytes())) {
    out.truncate(*bytes);
    return out;
  }
  for (std::size_t begin = 0; begin < weight.size(); begin += compress::kUnitElements) {
    const std::size_t count = std::min<std::size_t>(compress::kUnitElements, weight.size() - begin);
    compress::Position of_unit = position;
    of_unit.offset += begin;
    const auto unit = weight.subspan(begin, count);
    const auto held_unit = held.subspan(begin, count);
    if (!encode_finite(codec, unit, of_unit, held_unit, out.bytes()))
      std::ranges::copy(unit, held_unit.begin());
  }
  return std::nullopt;
}

void add_delta(const compress::Codec& codec, compress::Payload delta, std::span<float> weight) {
  const std::span<float> difference = scratch(weight.size());
  codec.decode(delta, difference);
  std::ranges::transform(weight, difference, weight.begin(), std::plus());
}

}  // namespace gradwire::kvstore
