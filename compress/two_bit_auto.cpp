#include "compress/two_bit_auto.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>

#include "compress/agreed_scale.h"
#include "compress/dense_kernels.h"
#include "compress/little_endian.h"
#include "compress/parameters.h"
#include "compress/payloads.h"
#include "compress/two_bit_kernels.h"

namespace gradwire::compress {
namespace {

/// What the body of a payload or reply holds. Part of the wire format, never renumber.
enum class Form : std::uint32_t { kDense = 0, kCodes = 1 };

constexpr std::size_t kTileElements = 2048;
constexpr std::size_t kHeadBytes = 8;   // form, units
constexpr std::size_t kUnitBytes = 16;  // one header per unit
constexpr std::uint32_t kLargestFloatBits = 0x7f7fffff;

constexpr std::size_t body_offset(std::size_t elements) {
  return kHeadBytes + kUnitBytes * unit_count(elements);
}

/// Fields of a unit's header, as 32-bit words. A payload and a reply share the layout of level-like values.
struct PayloadUnit {
  float level = 0;
  float sum_all = 0;
  float sum_selected = 0;
  std::uint32_t selected_count = 0;
};
struct ReplyUnit {
  float next_threshold = 0;
  float next_level = 0;
  float level = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(PayloadUnit) == kUnitBytes && sizeof(ReplyUnit) == kUnitBytes);

template <typename Unit>
Unit load_unit(Payload bytes, std::size_t unit) {
  return load<Unit>(bytes.data() + kHeadBytes + unit * kUnitBytes);
}

std::size_t unit_elements(std::size_t elements, std::size_t unit) {
  return std::min(kUnitElements, elements - unit * kUnitElements);
}

bool finite_and_not_negative(float value) { return std::bit_cast<std::uint32_t>(value) <= kLargestFloatBits; }

[[noreturn]] void fail(const std::string& what, const std::string& problem) {
  throw DecodeError("2bit: " + what + " " + problem);
}

/// Checks form, unit count and, given the codes' size, the length. `what` is called only to word an error.
template <typename What>
Form check_head(Payload bytes, std::size_t elements, std::size_t code_bytes, const What& what) {
  if (bytes.size() < body_offset(elements)) {
    fail(what(), "has " + std::to_string(bytes.size()) + " bytes, the header alone needs " +
                     std::to_string(body_offset(elements)));
  }
  const auto form = load<std::uint32_t>(bytes.data());
  if (form > static_cast<std::uint32_t>(Form::kCodes))
    fail(what(), "has form " + std::to_string(form) + ", expected 0 or 1");
  const auto units = load<std::uint32_t>(bytes.data() + 4);
  if (units != unit_count(elements)) {
    fail(what(), "has " + std::to_string(units) + " units, " + std::to_string(elements) + " elements have " +
                     std::to_string(unit_count(elements)));
  }
  const std::size_t body = static_cast<Form>(form) == Form::kDense ? elements * sizeof(float) : code_bytes;
  if (bytes.size() != body_offset(elements) + body) {
    fail(what(), "has " + std::to_string(bytes.size()) + " bytes, " + std::to_string(elements) +
                     " elements need " + std::to_string(body_offset(elements) + body));
  }
  return static_cast<Form>(form);
}

template <typename What>
Form check_payload(Payload payload, std::size_t elements, const What& what) {
  const Form form = check_head(payload, elements, two_bit::packed_bytes(elements), what);
  for (std::size_t u = 0; u < unit_count(elements); ++u) {
    const auto unit = load_unit<PayloadUnit>(payload, u);
    if (!finite_and_not_negative(unit.level) || !finite_and_not_negative(unit.sum_all) ||
        !finite_and_not_negative(unit.sum_selected)) {
      fail(what(), "has a negative or non-finite level or sum in unit " + std::to_string(u));
    }
    if (unit.selected_count > unit_elements(elements, u)) {
      fail(what(), "counts " + std::to_string(unit.selected_count) + " sent elements in unit " +
                       std::to_string(u) + " of " + std::to_string(unit_elements(elements, u)));
    }
    if (form == Form::kDense && unit.level != 0)
      fail(what(), "is dense but has a level in unit " + std::to_string(u));
  }
  return form;
}

void write_head(Form form, std::size_t elements, std::byte* out) {
  store(static_cast<std::uint32_t>(form), out);
  store(static_cast<std::uint32_t>(unit_count(elements)), out + 4);
}

}  // namespace

/// A stretch of elements inside one unit.
struct TwoBitAuto::Run {
  std::size_t first;
  std::size_t elements;
};

/// The checked payloads of one round.
struct TwoBitAuto::Round {
  std::span<const Payload> payloads;
  std::size_t elements;
  std::size_t dense_count = 0;
  std::size_t levels_from = 0;  // a payload of codes, if there is one

  Round(std::span<const Payload> given, std::size_t element_count)
      : payloads(given), elements(element_count) {
    expect_ways("2bit", payloads.size());
    bool any_codes = false;
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      const auto what = [&] { return payload_name(i, payloads.size()); };
      if (check_payload(payloads[i], elements, what) == Form::kDense) {
        ++dense_count;
      } else if (!any_codes) {
        any_codes = true;
        levels_from = i;
      } else {
        check_levels(i);
      }
    }
  }

  void check_levels(std::size_t i) const {
    for (std::size_t u = 0; u < unit_count(elements); ++u) {
      const float expected = load_unit<PayloadUnit>(payloads[levels_from], u).level;
      const float found = load_unit<PayloadUnit>(payloads[i], u).level;
      if (found == expected) continue;
      fail(payload_name(i, payloads.size()),
           "has level " + parameter_text(static_cast<double>(found)) + " in unit " + std::to_string(u) +
               " where payload " + std::to_string(levels_from) + " has " +
               parameter_text(static_cast<double>(expected)) + "; all workers of a round share one level");
    }
  }

  Run unit(std::size_t u) const { return {u * kUnitElements, unit_elements(elements, u)}; }
  float level(std::size_t u) const { return load_unit<PayloadUnit>(payloads[levels_from], u).level; }
  two_bit::Codes codes(std::size_t first) const { return {payloads, body_offset(elements) + first / 4}; }

  UnitScale next(std::size_t u, float scale) const {
    RoundSums sums;
    for (const Payload& payload : payloads) {
      const auto unit = load_unit<PayloadUnit>(payload, u);
      sums.all += unit.sum_all;
      sums.selected += unit.sum_selected;
      sums.selected_count += unit.selected_count;
    }
    return agreed_scale(sums, scale, payloads.size() * unit_elements(elements, u));
  }

  /// Writes the sum of a run that lies in one unit: by integers where all sent codes, else float by float in
  /// rank order.
  void sum(const Run& run, float level, float* out) const {
    if (dense_count == 0) return two_bit::sum_to_floats(codes(run.first), run.elements, level, out);
    if (dense_count == payloads.size()) {
      dense::sum(dense::Format::kF32, payloads, body_offset(elements) + run.first * sizeof(float),
                 run.elements, out);
      return;
    }
    alignas(64) float values[kTileElements];
    for (std::size_t i = 0; i < run.elements; i += kTileElements) {
      const Run tile{run.first + i, std::min(kTileElements, run.elements - i)};
      decode_one(0, tile, level, out + i);
      for (std::size_t way = 1; way < payloads.size(); ++way) {
        decode_one(way, tile, level, values);
        for (std::size_t j = 0; j < tile.elements; ++j) out[i + j] += values[j];
      }
    }
  }

  void decode_one(std::size_t way, const Run& run, float level, float* out) const {
    const auto payload = payloads.subspan(way, 1);
    if (load<std::uint32_t>(payload[0].data()) == static_cast<std::uint32_t>(Form::kDense)) {
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
  return {"2bit",
          {{"threshold", "auto"},
           {"nonfinite", "skip"},
           {"scale", static_cast<double>(scale_)},
           {"reply_scale", static_cast<double>(reply_scale_)}}};
}

std::size_t TwoBitAuto::max_encoded_size(std::size_t elements) const noexcept {
  return body_offset(elements) + elements * sizeof(float);
}

bool TwoBitAuto::encode_dense_unit(const Run& unit, const float* grad, float* residual, std::byte* header,
                                   std::byte* body) const {
  two_bit::UnitSums sums;
  two_bit::measure(grad, residual, unit.elements, std::numeric_limits<float>::infinity(), &sums);
  const float sum_all = two_bit::UnitSums::fold(sums.all);
  const float threshold = agreed_threshold(scale_, sum_all, unit.elements);
  if (threshold > 0) {
    sums = {};
    two_bit::measure(grad, residual, unit.elements, threshold, &sums);
  }
  store(PayloadUnit{0, sum_all, two_bit::UnitSums::fold(sums.selected), sums.selected_count}, header);
  return dense::encode(dense::Format::kF32Finite, grad, residual, unit.elements, body);
}

Encoded TwoBitAuto::encode(std::span<const float> grad, std::span<float> residual,
                           std::span<const UnitScale> scales, std::span<std::byte> out) const {
  const std::size_t elements = grad.size();
  expect_encode_spans(name(), elements, residual.size(), out.size(), max_encoded_size(elements));
  if (!scales.empty() && scales.size() != unit_count(elements)) {
    throw std::invalid_argument("2bit: " + std::to_string(scales.size()) + " scales were given, " +
                                std::to_string(elements) + " elements have " +
                                std::to_string(unit_count(elements)) + " units");
  }
  const bool dense = scales.empty();
  write_head(dense ? Form::kDense : Form::kCodes, elements, out.data());
  std::byte* const body = out.data() + body_offset(elements);
  bool nonfinite = false;
  for (std::size_t u = 0; u < unit_count(elements); ++u) {
    const Run unit{u * kUnitElements, unit_elements(elements, u)};
    std::byte* const header = out.data() + kHeadBytes + u * kUnitBytes;
    float* const kept = residual.empty() ? nullptr : residual.data() + unit.first;
    if (dense) {
      nonfinite |=
          encode_dense_unit(unit, grad.data() + unit.first, kept, header, body + unit.first * sizeof(float));
      continue;
    }
    if (!finite_and_not_negative(scales[u].threshold) || !finite_and_not_negative(scales[u].level)) {
      throw std::invalid_argument("2bit: the scale of unit " + std::to_string(u) +
                                  " is negative or not finite; hand over what decode_reply() gave");
    }
    two_bit::UnitSums sums;
    nonfinite |= two_bit::encode(grad.data() + unit.first, kept, unit.elements,
                                 {scales[u].threshold, scales[u].level, two_bit::NonFinite::kSkip},
                                 body + unit.first / 4, &sums);
    store(PayloadUnit{scales[u].level, two_bit::UnitSums::fold(sums.all),
                      two_bit::UnitSums::fold(sums.selected), sums.selected_count},
          header);
  }
  return {body_offset(elements) + (dense ? elements * sizeof(float) : two_bit::packed_bytes(elements)),
          nonfinite};
}

void TwoBitAuto::decode_sum(std::span<const Payload> payloads, std::span<float> out) const {
  const Round round(payloads, out.size());
  for (std::size_t u = 0; u < unit_count(out.size()); ++u) {
    round.sum(round.unit(u), round.level(u), out.data() + u * kUnitElements);
  }
}

void TwoBitAuto::validate(Payload payload, std::size_t elements) const {
  check_payload(payload, elements, [] { return std::string("the payload"); });
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
  alignas(64) float sums[kTileElements];
  const auto each_tile = [&](const auto& use) {
    for (std::size_t i = 0; i < unit.elements; i += kTileElements) {
      const Run tile{unit.first + i, std::min(kTileElements, unit.elements - i)};
      round.sum(tile, level, sums);
      use(i, tile.elements, residual == nullptr ? nullptr : residual + i);
    }
  };
  two_bit::UnitSums all;
  each_tile([&](std::size_t, std::size_t elements, const float* kept) {
    two_bit::measure(sums, kept, elements, std::numeric_limits<float>::infinity(), &all);
  });
  const float total = two_bit::UnitSums::fold(all.all);
  float threshold = 0;
  float reply_level = 0;
  // Where all |x| are alike none reaches a scale above 1, and nothing would ever leave; half the mean is
  // always reached.
  for (float scale : {reply_scale_, 0.5f}) {
    threshold = agreed_threshold(scale, total, unit.elements);
    if (threshold == 0) break;
    two_bit::UnitSums sent;
    each_tile([&](std::size_t, std::size_t elements, const float* kept) {
      two_bit::measure(sums, kept, elements, threshold, &sent);
    });
    if (sent.selected_count == 0) continue;
    reply_level =
        round_to_8_bits(static_cast<double>(two_bit::UnitSums::fold(sent.selected)) / sent.selected_count);
    break;
  }
  bool nonfinite = false;
  each_tile([&](std::size_t i, std::size_t elements, float* kept) {
    nonfinite |= two_bit::encode(sums, kept, elements, {threshold, reply_level, two_bit::NonFinite::kSkip},
                                 body + i / 4, nullptr);
  });
  store(reply_level, header + offsetof(ReplyUnit, level));
  return nonfinite;
}

Encoded TwoBitAuto::encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                                 std::span<float> residual, std::span<std::byte> out) const {
  const Round round(payloads, elements);
  expect_encode_spans(name(), elements, residual.size(), out.size(),
                      max_reply_size(elements, payloads.size(), kind));
  const Form form = kind == ReplyKind::kFp32 || round.dense_count > 0 ? Form::kDense : Form::kCodes;
  write_head(form, elements, out.data());
  std::byte* const body = out.data() + body_offset(elements);
  const std::size_t bits = two_bit::count_bits(payloads.size());
  bool nonfinite = false;
  for (std::size_t u = 0; u < unit_count(elements); ++u) {
    const Run unit = round.unit(u);
    const float level = round.level(u);
    const UnitScale next = round.next(u, scale_);
    std::byte* const header = out.data() + kHeadBytes + u * kUnitBytes;
    store(ReplyUnit{next.threshold, next.level, form == Form::kCodes ? level : 0.0f, 0}, header);
    float* const kept =
        kind == ReplyKind::kSame && !residual.empty() ? residual.data() + unit.first : nullptr;
    if (form == Form::kCodes && kind == ReplyKind::kExact) {
      two_bit::sum_to_planes(round.codes(unit.first), unit.elements,
                             body + unit.first / two_bit::kPlaneGroup * 8 * bits);
    } else if (form == Form::kCodes) {
      nonfinite |= requantise_unit(round, unit, level, kept, header, body + unit.first / 4);
    } else {
      const auto format = kind == ReplyKind::kSame ? dense::Format::kF32Finite : dense::Format::kF32;
      alignas(64) float sums[kTileElements];
      for (std::size_t i = 0; i < unit.elements; i += kTileElements) {
        const Run tile{unit.first + i, std::min(kTileElements, unit.elements - i)};
        round.sum(tile, level, sums);
        nonfinite |= dense::encode(format, sums, kept == nullptr ? nullptr : kept + i, tile.elements,
                                   body + tile.first * sizeof(float));
      }
    }
  }
  const std::size_t code_bytes = kind == ReplyKind::kExact ? two_bit::plane_bytes(elements, payloads.size())
                                                           : two_bit::packed_bytes(elements);
  return {body_offset(elements) + (form == Form::kDense ? elements * sizeof(float) : code_bytes), nonfinite};
}

void TwoBitAuto::decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                              std::span<UnitScale> next) const {
  expect_ways(name(), ways);
  const std::size_t elements = out.size();
  const std::size_t code_bytes =
      kind == ReplyKind::kExact ? two_bit::plane_bytes(elements, ways) : two_bit::packed_bytes(elements);
  const auto what = [] { return std::string("the reply"); };
  const Form form = check_head(reply, elements, code_bytes, what);
  if (form == Form::kCodes && kind == ReplyKind::kFp32)
    fail(what(), "holds codes where floats were asked for");
  if (!next.empty() && next.size() != unit_count(elements)) {
    throw std::invalid_argument("2bit: room for " + std::to_string(next.size()) + " scales was given, " +
                                std::to_string(elements) + " elements have " +
                                std::to_string(unit_count(elements)) + " units");
  }
  const std::size_t body = body_offset(elements);
  for (std::size_t u = 0; u < unit_count(elements); ++u) {
    const auto unit = load_unit<ReplyUnit>(reply, u);
    if (!finite_and_not_negative(unit.next_threshold) || !finite_and_not_negative(unit.next_level) ||
        !finite_and_not_negative(unit.level) || unit.reserved != 0) {
      fail(what(), "has a bad threshold or level in unit " + std::to_string(u));
    }
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
