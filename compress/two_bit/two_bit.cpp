#include "compress/two_bit/two_bit.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "compress/dense/dense_kernels.h"
#include "compress/payload/parameters.h"
#include "compress/payload/payloads.h"
#include "compress/two_bit/two_bit_auto.h"
#include "compress/two_bit/two_bit_integers.h"
#include "compress/two_bit/two_bit_kernels.h"

namespace gradwire::compress {
namespace {

constexpr std::size_t kTileElements = 2048;
constexpr float kDefaultThreshold = 0.5f;  // MXNet's

constexpr ParameterInfo kParameters[] = {
    {"threshold", "0.5",
     "above 0: the threshold and the value sent, as MXNet; auto: agreed by all workers every round"},
    {"nonfinite", "skip",
     "skip: an element whose gradient is NaN or infinite sends 0 and keeps its residual; mxnet: as MXNet, to "
     "the bit"},
    {"scale", "1.5", "with threshold=auto: the threshold in means of |gradient + residual|, above 0"},
    {"reply_scale", "1.5",
     "with threshold=auto: the threshold of a 2bit reply in means of |sum + residual|, above 0"},
    {"lossless", "off",
     "on: stores send payloads and 2bit replies without most of their zeros, where that is shorter"},
};

}  // namespace

WireParameters TwoBitFixed::wire_parameters() const noexcept {
  return {std::bit_cast<std::uint32_t>(threshold_), 0, 0, 0};
}

CodecSpec TwoBitFixed::spec() const {
  CodecSpec spec{"2bit",
                 {{"threshold", static_cast<double>(threshold_)},
                  {"nonfinite", nonfinite_ == two_bit::NonFinite::kSkip ? "skip" : "mxnet"}}};
  if (wants_lossless_stage()) spec.parameters.push_back({"lossless", "on"});
  return spec;
}

std::size_t TwoBitFixed::max_encoded_size(std::size_t elements) const noexcept {
  return two_bit::packed_bytes(elements);
}

Encoded TwoBitFixed::encode(std::span<const float> grad, std::span<float> residual,
                            std::span<const UnitScale>, std::span<std::byte> out, const Position&) const {
  const std::size_t bytes = two_bit::packed_bytes(grad.size());
  expect_encode_spans(name(), grad.size(), residual.size(), out.size(), bytes);
  const bool nonfinite = two_bit::encode(grad.data(), data_or_null(residual), grad.size(),
                                         {threshold_, threshold_, nonfinite_}, out.data(), nullptr);
  return {bytes, nonfinite};
}

Encoded TwoBitFixed::encode_bf16(std::span<const float> grad, std::span<std::byte> residual,
                                 std::span<std::byte> out, const Position&) const {
  const std::size_t bytes = two_bit::packed_bytes(grad.size());
  expect_bf16_spans(name(), grad.size(), residual.size(), out.size(), bytes);
  const bool nonfinite = two_bit::encode_bf16(grad.data(), residual.data(), grad.size(),
                                              {threshold_, threshold_, nonfinite_}, out.data());
  return {bytes, nonfinite};
}

void TwoBitFixed::decode_sum(std::span<const Payload> payloads, std::span<float> out) const {
  expect_ways(name(), payloads.size());
  expect_payload_bytes(name(), payloads, two_bit::packed_bytes(out.size()), out.size());
  two_bit::sum_to_floats({payloads}, out.size(), threshold_, out.data());
}

void TwoBitFixed::validate(Payload payload, std::size_t elements) const {
  expect_bytes(name(), "the payload", payload.size(), two_bit::packed_bytes(elements), elements);
}

std::size_t TwoBitFixed::max_reply_size(std::size_t elements, std::size_t ways,
                                        ReplyKind kind) const noexcept {
  switch (kind) {
    case ReplyKind::kExact:
      return two_bit::plane_bytes(elements, ways);
    case ReplyKind::kSame:
      return two_bit::packed_bytes(elements);
    default:
      return elements * sizeof(float);
  }
}

template <typename Sums>
Encoded TwoBitFixed::requantise(const Sums& sums, std::size_t elements, std::size_t ways, float* residual,
                                std::byte* out) const {
  const float level = two_bit::reply_level(threshold_, ways);
  // Rounds to the nearest of three levels. With the workers' threshold as level the server's residual would
  // diverge (README, Arithmetic).
  const two_bit::Quantiser quantiser{level / 2, level, two_bit::NonFinite::kSkip};
  bool nonfinite = false;
  // Tiles stay in the first-level cache: the sum is decoded and coded again without a pass through memory.
  alignas(64) float values[kTileElements];
  for (std::size_t i = 0; i < elements; i += kTileElements) {
    const std::size_t length = std::min(kTileElements, elements - i);
    two_bit::sum_to_floats(sums.from_element(i), length, threshold_, values);
    nonfinite |= two_bit::encode(values, residual == nullptr ? nullptr : residual + i, length, quantiser,
                                 out + i / 4, nullptr);
  }
  return {two_bit::packed_bytes(elements), nonfinite};
}

template <typename Sums>
Encoded TwoBitFixed::reply(const Sums& sums, std::size_t elements, std::size_t ways, ReplyKind kind,
                           std::span<float> residual, std::span<std::byte> out) const {
  const std::size_t bytes = max_reply_size(elements, ways, kind);
  expect_encode_spans(name(), elements, residual.size(), out.size(), bytes);
  if (kind == ReplyKind::kSame) return requantise(sums, elements, ways, data_or_null(residual), out.data());
  // Counts and not values: they are exact, and shorter than floats.
  if (kind == ReplyKind::kExact) {
    two_bit::sum_to_planes(sums, elements, out.data());
    return {bytes, false};
  }
  bool nonfinite = false;
  alignas(64) float values[kTileElements];
  for (std::size_t i = 0; i < elements; i += kTileElements) {
    const std::size_t length = std::min(kTileElements, elements - i);
    two_bit::sum_to_floats(sums.from_element(i), length, threshold_, values);
    // No residual: an fp32 reply keeps nothing back.
    nonfinite |= dense::encode(dense::Format::kF32, values, nullptr, length, out.data() + i * sizeof(float));
  }
  return {bytes, nonfinite};
}

Encoded TwoBitFixed::encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                                  std::span<float> residual, std::span<std::byte> out) const {
  expect_ways(name(), payloads.size());
  expect_payload_bytes(name(), payloads, two_bit::packed_bytes(elements), elements);
  return reply(two_bit::Codes{payloads}, elements, payloads.size(), kind, residual, out);
}

void TwoBitFixed::expand(Payload payload, std::size_t elements, IntegerWidth width,
                         std::span<std::byte> out) const {
  two_bit::expand_codes(payload.data(), elements, width, out.data());
}

void TwoBitFixed::decode_sum(const SummedRound& round, std::span<float> out) const {
  two_bit::sum_to_floats(two_bit::checked_codes(round, out.size()), out.size(), threshold_, out.data());
}

Encoded TwoBitFixed::encode_reply(const SummedRound& round, std::size_t elements, ReplyKind kind,
                                  std::span<float> residual, std::span<std::byte> out) const {
  return reply(two_bit::checked_codes(round, elements), elements, round.ways, kind, residual, out);
}

void TwoBitFixed::decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                               std::span<UnitScale>) const {
  expect_ways(name(), ways);
  expect_bytes(name(), "the reply", reply.size(), max_reply_size(out.size(), ways, kind), out.size());
  switch (kind) {
    case ReplyKind::kExact: {
      const std::uint32_t largest =
          two_bit::planes_to_floats(reply.data(), ways, out.size(), threshold_, out.data());
      // Only now: the largest count is known once the planes were read.
      expect_counts(name(), largest, ways);
      return;
    }
    case ReplyKind::kSame:
      two_bit::sum_to_floats({{&reply, 1}}, out.size(), two_bit::reply_level(threshold_, ways), out.data());
      return;
    default:
      dense::sum(dense::Format::kF32, {&reply, 1}, 0, out.size(), out.data());
  }
}

std::span<const ParameterInfo> two_bit_parameters() noexcept { return kParameters; }

std::unique_ptr<Codec> make_two_bit(const CodecSpec& spec) {
  const auto nonfinite = word_index(spec, "nonfinite", {"skip", "mxnet"}) == 0 ? two_bit::NonFinite::kSkip
                                                                               : two_bit::NonFinite::kMxnet;
  const auto stage =
      word_index(spec, "lossless", {"off", "on"}) == 0 ? two_bit::Stage::kNone : two_bit::Stage::kLossless;
  const ParameterValue* const threshold = find_parameter(spec, "threshold");
  if (threshold != nullptr && *threshold == ParameterValue("auto")) {
    if (nonfinite == two_bit::NonFinite::kMxnet) {
      throw std::invalid_argument(
          "2bit: nonfinite=mxnet is MXNet's rule and threshold=auto is not; give nonfinite=skip or a number "
          "as "
          "threshold");
    }
    return std::make_unique<TwoBitAuto>(positive_float(spec, "scale", TwoBitAuto::kDefaultScale),
                                        positive_float(spec, "reply_scale", TwoBitAuto::kDefaultReplyScale),
                                        stage);
  }
  for (const char* name : {"scale", "reply_scale"}) {
    if (const ParameterValue* const given = find_parameter(spec, name)) {
      throw std::invalid_argument("2bit: " + std::string(name) + "=" + parameter_text(*given) +
                                  " applies to threshold=auto only; leave it out or give threshold=auto");
    }
  }
  return std::make_unique<TwoBitFixed>(
      positive_float(spec, "threshold", kDefaultThreshold, " or the word auto"), nonfinite, stage);
}

std::unique_ptr<Codec> two_bit_from_wire(const WireParameters& parameters) {
  // A fixed threshold is above 0, so 0 stands for auto.
  if (parameters[0] == 0) {
    expect_unused_from_wire("2bit", parameters, 3);
    return std::make_unique<TwoBitAuto>(positive_float_from_wire("2bit", "scale", parameters[1]),
                                        positive_float_from_wire("2bit", "reply_scale", parameters[2]),
                                        two_bit::Stage::kNone);
  }
  expect_unused_from_wire("2bit", parameters, 1);
  return std::make_unique<TwoBitFixed>(positive_float_from_wire("2bit", "threshold", parameters[0]),
                                       two_bit::NonFinite::kSkip, two_bit::Stage::kNone);
}

}  // namespace gradwire::compress
