#include "compress/two_bit/two_bit_auto.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <stdexcept>
#include <string>

#include "compress/dense/dense_kernels.h"
#include "compress/payload/payloads.h"
#include "compress/two_bit/agreed_scale.h"
#include "compress/two_bit/two_bit_auto_checks.h"
#include "compress/two_bit/two_bit_auto_layout.h"
#include "compress/two_bit/two_bit_integers.h"
#include "compress/two_bit/two_bit_kernels.h"

namespace gradwire::compress {
namespace {

using two_bit::body_offset;
using two_bit::Form;
using two_bit::load_unit;
using two_bit::PayloadUnit;
using two_bit::ReplyUnit;
using two_bit::unit_elements;
using two_bit::unit_offset;

constexpr std::size_t kAutoTileElements = 2 * two_bit::kBlockElements;  // whole blocks, as sums are appended

}  // namespace

/// A stretch of elements inside one unit.
struct TwoBitAuto::Run {
  std::size_t first;
  std::size_t elements;
};

/// The checked payloads of one round; or, where a library has summed it, their heads and the sums.
struct TwoBitAuto::Round {
  std::span<const Payload> payloads;
  std::size_t elements;
  two_bit::RoundForms forms;
  std::optional<two_bit::IntegerCodes> summed;

  Round(std::span<const Payload> given, std::size_t element_count)
      : payloads(given), elements(element_count), forms(two_bit::check_round(given, element_count)) {}

  Round(const SummedRound& given, std::size_t element_count)
      : payloads(given.heads), elements(element_count), summed(two_bit::checked_codes(given, element_count)) {
    if (given.heads.size() != given.ways) {
      throw DecodeError("2bit: " + std::to_string(given.heads.size()) + " heads came with a sum of " +
                        std::to_string(given.ways) + " payloads");
    }
    // After the number of heads is known: levels are read from one of them.
    forms = two_bit::check_heads(given.heads, element_count);
  }

  Run unit(std::size_t u) const { return {u * kUnitElements, unit_elements(elements, u)}; }
  float level(std::size_t u) const {
    return load_unit<PayloadUnit>(payloads[forms.levels_from].data(), u).level;
  }
  two_bit::Codes codes(std::size_t first) const { return {payloads, body_offset(elements) + first / 4}; }

  UnitScale next(std::size_t u, float scale) const {
    RoundSums sums;
    for (const Payload& payload : payloads) sums.add(load_unit<PayloadUnit>(payload.data(), u));
    // Added in rank order in double, here and in WriteReplyUnit (device/two_bit_auto_thrust.h): all servers
    // and devices come to the same scale, bit for bit.
    return agreed_scale(sums, scale, payloads.size() * unit_elements(elements, u));
  }

  /// Writes the bit planes of a run of codes.
  void planes(const Run& run, std::byte* out) const {
    if (summed) return two_bit::sum_to_planes(summed->from_element(run.first), run.elements, out);
    two_bit::sum_to_planes(codes(run.first), run.elements, out);
  }

  /// Writes the sum of a run that lies in one unit: by integers where all sent codes, else float by float in
  /// rank order.
  void sum(const Run& run, float level, float* out) const {
    if (summed) return two_bit::sum_to_floats(summed->from_element(run.first), run.elements, level, out);
    // Integers first, one product at the end: the same bits as where a library has summed the codes.
    if (forms.dense_count == 0) return two_bit::sum_to_floats(codes(run.first), run.elements, level, out);
    if (forms.dense_count == payloads.size()) {
      dense::sum(dense::Format::kF32, payloads, body_offset(elements) + run.first * sizeof(float),
                 run.elements, out);
      return;
    }
    alignas(64) float values[kAutoTileElements];
    for (std::size_t i = 0; i < run.elements; i += kAutoTileElements) {
      const Run tile{run.first + i, std::min(kAutoTileElements, run.elements - i)};
      decode_one(0, tile, level, out + i);
      // In rank order, as MixedSumSource of the device twins adds.
      for (std::size_t way = 1; way < payloads.size(); ++way) {
        decode_one(way, tile, level, values);
        for (std::size_t j = 0; j < tile.elements; ++j) out[i + j] += values[j];
      }
    }
  }

  void decode_one(std::size_t way, const Run& run, float level, float* out) const {
    const auto payload = payloads.subspan(way, 1);
    if (two_bit::form_of(payload[0].data()) == Form::kDense) {
      dense::sum(dense::Format::kF32, payload, body_offset(elements) + run.first * sizeof(float),
                 run.elements, out);
    } else {
      two_bit::sum_to_floats({payload, body_offset(elements) + run.first / 4}, run.elements, level, out);
    }
  }
};

WireParameters TwoBitAuto::wire_parameters() const noexcept {
  return {0, std::bit_cast<std::uint32_t>(scale_), std::bit_cast<std::uint32_t>(reply_scale_), 0};
}

CodecSpec TwoBitAuto::spec() const {
  CodecSpec spec{"2bit",
                 {{"threshold", "auto"},
                  {"nonfinite", "skip"},
                  {"scale", static_cast<double>(scale_)},
                  {"reply_scale", static_cast<double>(reply_scale_)}}};
  if (wants_lossless_stage()) spec.parameters.push_back({"lossless", "on"});
  return spec;
}

std::size_t TwoBitAuto::max_encoded_size(std::size_t elements) const noexcept {
  // The dense form, which the first round takes, is the longer one.
  return body_offset(elements) + elements * sizeof(float);
}

bool TwoBitAuto::encode_dense_unit(const Run& unit, const float* grad, float* residual, std::byte* header,
                                   std::byte* body) const {
  two_bit::UnitSums sums;
  // No element reaches infinity, so this pass selects none: it only makes the mean that gives the threshold.
  two_bit::measure(grad, residual, unit.elements, std::numeric_limits<float>::infinity(), &sums);
  const float sum_all = sums.sum_all();
  const float threshold = agreed_threshold(scale_, sum_all, unit.elements);
  // A threshold of 0 means that all of the unit is 0, or that its mean rounds to 0. Nothing is selected then.
  if (threshold > 0) {
    sums = {};
    two_bit::measure(grad, residual, unit.elements, threshold, &sums);
  }
  store(PayloadUnit{0, sum_all, sums.sum_selected(), sums.selected_count}, header);
  // After the sums, because it clears the residual that they are of.
  return dense::encode(dense::Format::kF32Finite, grad, residual, unit.elements, body);
}

Encoded TwoBitAuto::encode(std::span<const float> grad, std::span<float> residual,
                           std::span<const UnitScale> scales, std::span<std::byte> out,
                           const Position&) const {
  const std::size_t elements = grad.size();
  expect_encode_spans(name(), elements, residual.size(), out.size(), max_encoded_size(elements));
  two_bit::expect_scales(scales.size(), elements);
  // All of them, before the first unit changes its residual.
  expect_usable_scales(name(), scales);
  const bool dense = scales.empty();
  two_bit::write_head(dense ? Form::kDense : Form::kCodes, elements, out.data());
  std::byte* const body = out.data() + body_offset(elements);
  bool nonfinite = false;
  for (std::size_t u = 0; u < unit_count(elements); ++u) {
    const Run unit{u * kUnitElements, unit_elements(elements, u)};
    std::byte* const header = out.data() + unit_offset(u);
    float* const kept = residual.empty() ? nullptr : residual.data() + unit.first;
    if (dense) {
      nonfinite |=
          encode_dense_unit(unit, grad.data() + unit.first, kept, header, body + unit.first * sizeof(float));
      continue;
    }
    two_bit::UnitSums sums;
    nonfinite |= two_bit::encode(grad.data() + unit.first, kept, unit.elements,
                                 {scales[u].threshold, scales[u].level, two_bit::NonFinite::kSkip},
                                 body + unit.first / 4, &sums);
    // Each payload repeats the level, so a round is summed without knowing what was agreed before.
    store(PayloadUnit{scales[u].level, sums.sum_all(), sums.sum_selected(), sums.selected_count}, header);
  }
  return {body_offset(elements) + (dense ? elements * sizeof(float) : two_bit::packed_bytes(elements)),
          nonfinite};
}

void TwoBitAuto::decode_sum(std::span<const Payload> payloads, std::span<float> out) const {
  sum_round(Round(payloads, out.size()), out);
}

void TwoBitAuto::decode_sum(const SummedRound& round, std::span<float> out) const {
  sum_round(Round(round, out.size()), out);
}

void TwoBitAuto::sum_round(const Round& round, std::span<float> out) const {
  for (std::size_t u = 0; u < unit_count(out.size()); ++u) {
    round.sum(round.unit(u), round.level(u), out.data() + u * kUnitElements);
  }
}

void TwoBitAuto::validate(Payload payload, std::size_t elements) const {
  two_bit::check_payload(payload, elements);
}

std::size_t TwoBitAuto::max_reply_size(std::size_t elements, std::size_t ways,
                                       ReplyKind kind) const noexcept {
  const std::size_t codes = kind == ReplyKind::kExact ? two_bit::plane_bytes(elements, ways) : 0;
  return body_offset(elements) + std::max(codes, elements * sizeof(float));
}

bool TwoBitAuto::requantise_unit(const Round& round, const Run& unit, float level, float* residual,
                                 std::byte* header, std::byte* body) const {
  // Three passes over a unit that stays in cache: the mean, the mean of what it selects, the codes. The sum
  // is made again each time, which costs less than keeping it would.
  alignas(64) float sums[kAutoTileElements];
  const auto each_tile = [&](const auto& use) {
    for (std::size_t i = 0; i < unit.elements; i += kAutoTileElements) {
      const Run tile{unit.first + i, std::min(kAutoTileElements, unit.elements - i)};
      round.sum(tile, level, sums);
      use(i, tile.elements, residual == nullptr ? nullptr : residual + i);
    }
  };
  two_bit::UnitSums all;
  each_tile([&](std::size_t, std::size_t elements, const float* kept) {
    two_bit::measure(sums, kept, elements, std::numeric_limits<float>::infinity(), &all);
  });
  const float total = all.sum_all();
  // The reply's own scale, of this sum: the level that workers agreed on is for gradients.
  const float threshold = agreed_threshold(reply_scale_, total, unit.elements);
  two_bit::UnitSums sent;
  if (threshold > 0) {
    each_tile([&](std::size_t, std::size_t elements, const float* kept) {
      two_bit::measure(sums, kept, elements, threshold, &sent);
    });
  }
  const UnitScale scale =
      agreed_scale({total, sent.sum_selected(), sent.selected_count}, reply_scale_, unit.elements);
  bool nonfinite = false;
  each_tile([&](std::size_t i, std::size_t elements, float* kept) {
    nonfinite |=
        two_bit::encode(sums, kept, elements, {scale.threshold, scale.level, two_bit::NonFinite::kSkip},
                        body + i / 4, nullptr);
  });
  // Only the level: the header has the next scales already.
  store(scale.level, header + offsetof(ReplyUnit, level));
  return nonfinite;
}

std::size_t TwoBitAuto::head_bytes(std::size_t elements) const noexcept { return body_offset(elements); }

bool TwoBitAuto::holds_codes(Payload payload) const noexcept {
  return two_bit::form_of(payload.data()) == Form::kCodes;
}

void TwoBitAuto::write_head(Payload payload, std::size_t elements, std::span<std::byte> out) const {
  std::copy_n(payload.data(), head_bytes(elements), out.data());
}

void TwoBitAuto::expand(Payload payload, std::size_t elements, IntegerWidth width,
                        std::span<std::byte> out) const {
  two_bit::expand_codes(payload.data() + body_offset(elements), elements, width, out.data());
}

Encoded TwoBitAuto::encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                                 std::span<float> residual, std::span<std::byte> out) const {
  return reply(Round(payloads, elements), kind, residual, out);
}

Encoded TwoBitAuto::encode_reply(const SummedRound& round, std::size_t elements, ReplyKind kind,
                                 std::span<float> residual, std::span<std::byte> out) const {
  return reply(Round(round, elements), kind, residual, out);
}

Encoded TwoBitAuto::reply(const Round& round, ReplyKind kind, std::span<float> residual,
                          std::span<std::byte> out) const {
  const std::size_t elements = round.elements;
  const std::size_t ways = round.payloads.size();
  expect_encode_spans(name(), elements, residual.size(), out.size(), max_reply_size(elements, ways, kind));
  const Form form = kind == ReplyKind::kFp32 || round.forms.dense_count > 0 ? Form::kDense : Form::kCodes;
  two_bit::write_head(form, elements, out.data());
  std::byte* const body = out.data() + body_offset(elements);
  const std::size_t bits = two_bit::count_bits(ways);
  bool nonfinite = false;
  for (std::size_t u = 0; u < unit_count(elements); ++u) {
    const Run unit = round.unit(u);
    const float level = round.level(u);
    // In every kind of reply: workers take their next scales from it whatever the answer is made of.
    const UnitScale next = round.next(u, scale_);
    std::byte* const header = out.data() + unit_offset(u);
    store(ReplyUnit{next.threshold, next.level, form == Form::kCodes ? level : 0.0f, 0}, header);
    // Exact and fp32 replies keep nothing back.
    float* const kept =
        kind == ReplyKind::kSame && !residual.empty() ? residual.data() + unit.first : nullptr;
    if (form == Form::kCodes && kind == ReplyKind::kExact) {
      round.planes(unit, body + unit.first / two_bit::kPlaneGroup * 8 * bits);
    } else if (form == Form::kCodes) {
      nonfinite |= requantise_unit(round, unit, level, kept, header, body + unit.first / 4);
    } else {
      // A sum that is not finite stays out of the server's residual, where it would stay for ever. An fp32
      // reply has no residual and shows it as it is.
      const auto format = kind == ReplyKind::kSame ? dense::Format::kF32Finite : dense::Format::kF32;
      alignas(64) float sums[kAutoTileElements];
      for (std::size_t i = 0; i < unit.elements; i += kAutoTileElements) {
        const Run tile{unit.first + i, std::min(kAutoTileElements, unit.elements - i)};
        round.sum(tile, level, sums);
        nonfinite |= dense::encode(format, sums, kept == nullptr ? nullptr : kept + i, tile.elements,
                                   body + tile.first * sizeof(float));
      }
    }
  }
  const std::size_t code_bytes =
      kind == ReplyKind::kExact ? two_bit::plane_bytes(elements, ways) : two_bit::packed_bytes(elements);
  return {body_offset(elements) + (form == Form::kDense ? elements * sizeof(float) : code_bytes), nonfinite};
}

void TwoBitAuto::decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                              std::span<UnitScale> next) const {
  const std::size_t elements = out.size();
  const Form form = two_bit::check_reply(reply, elements, ways, kind);
  two_bit::expect_scales(next.size(), elements);
  const std::size_t body = body_offset(elements);
  for (std::size_t u = 0; u < unit_count(elements); ++u) {
    const auto unit = load_unit<ReplyUnit>(reply.data(), u);
    if (!next.empty()) next[u] = {unit.next_threshold, unit.next_level};
    const std::size_t first = u * kUnitElements;
    const std::size_t length = unit_elements(elements, u);
    float* const to = out.data() + first;
    if (form == Form::kDense) {
      dense::sum(dense::Format::kF32, {&reply, 1}, body + first * sizeof(float), length, to);
    } else if (kind == ReplyKind::kSame) {
      two_bit::sum_to_floats({{&reply, 1}, body + first / 4}, length, unit.level, to);
    } else {
      const std::byte* const planes =
          reply.data() + body + first / two_bit::kPlaneGroup * 8 * two_bit::count_bits(ways);
      expect_counts(name(), two_bit::planes_to_floats(planes, ways, length, unit.level, to), ways);
    }
  }
}

}  // namespace gradwire::compress
