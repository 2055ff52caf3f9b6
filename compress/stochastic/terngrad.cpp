#include "compress/stochastic/terngrad.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "compress/payload/parameters.h"
#include "compress/payload/scales.h"
#include "compress/stochastic/terngrad_kernels.h"
#include "compress/two_bit/two_bit_kernels.h"

namespace gradwire::compress {
namespace {

constexpr std::size_t kTernGradTileElements = 4096;
constexpr float kDefaultClip = 1.5f;
constexpr float kLeastClip = 0.001f;

constexpr ParameterInfo kTernGradParameters[] = {
    {"clip", "1.5",
     "what an element stands for is at most so many deviations of its codec unit, a number above 0 (below 2 "
     "where a "
     "residual is kept, as stores do; the paper's is 2.5); off: the largest |gradient + residual|"},
    {"seed", "0", "of the draws, a whole number below 2^32"},
    {"nonfinite", "skip",
     "skip: an element whose gradient is NaN or infinite sends 0 and keeps its residual"},
};

constexpr std::size_t header_bytes(std::size_t elements) { return unit_count(elements) * sizeof(float); }

}  // namespace

TernGrad::TernGrad(float clip, std::uint32_t seed) noexcept
    : FloatSumCodec("terngrad", WireId::kTernGrad, kTernGradTileElements), clip_(clip), seed_(seed) {}

WireParameters TernGrad::wire_parameters() const noexcept {
  return {std::bit_cast<std::uint32_t>(clip_), seed_, 0, 0};
}

CodecSpec TernGrad::spec() const {
  const ParameterValue clip = clip_ > 0 ? ParameterValue(static_cast<double>(clip_)) : ParameterValue("off");
  return {"terngrad", {{"clip", clip}, {"seed", static_cast<double>(seed_)}, {"nonfinite", "skip"}}};
}

std::size_t TernGrad::max_encoded_size(std::size_t elements) const noexcept {
  return header_bytes(elements) + two_bit::packed_bytes(elements);
}

/// Server rounds to nearest: it keeps what is left, and every rank that answers itself must answer alike.
bool TernGrad::encode_run(const float* grad, float* residual, const Run& run, const Position* position,
                          std::byte* out) const {
  const Dither dither{seed_, position == nullptr ? Position{} : *position};
  bool nonfinite = false;
  for (std::size_t i = 0; i < run.length; i += kUnitElements) {
    const std::size_t length = std::min(kUnitElements, run.length - i);
    float* const kept = residual == nullptr ? nullptr : residual + i;
    terngrad::Moments moments;
    terngrad::measure(grad + i, kept, length, &moments);
    const float scale = terngrad::scale_of(moments, length, clip_);
    store(scale, out + (run.first + i) / kUnitElements * sizeof(float));
    nonfinite |= terngrad::encode(grad + i, kept, length, scale, position == nullptr ? nullptr : &dither, i,
                                  out + header_bytes(run.elements) + (run.first + i) / 4);
  }
  return nonfinite;
}

void TernGrad::decode_run(Payload payload, const Run& run, bool add, float* out) const {
  const auto scale = load<float>(payload.data() + run.first / kUnitElements * sizeof(float));
  const std::size_t offset = header_bytes(run.elements) + run.first / 4;
  if (add) return two_bit::add_to_floats(payload.data() + offset, run.length, scale, out);
  two_bit::sum_to_floats({{&payload, 1}, offset}, run.length, scale, out);
}

std::string TernGrad::fault(Payload payload, std::size_t elements) const {
  return wrong_scale(payload.first(unit_count(elements) * sizeof(float)), unit_count(elements), "unit");
}

std::span<const ParameterInfo> terngrad_parameters() noexcept { return kTernGradParameters; }

std::unique_ptr<Codec> make_terngrad(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  const ParameterValue* const clip = find_parameter(spec, "clip");
  const bool is_off = clip != nullptr && *clip == ParameterValue("off");
  const float given = is_off ? 0 : positive_float(spec, "clip", kDefaultClip, " or the word off");
  if (!is_off && given < kLeastClip) {
    throw std::invalid_argument("terngrad: clip=" + parameter_text(*clip) +
                                " would send next to nothing; give 0.001 or more, e.g. clip=1.5");
  }
  return std::make_unique<TernGrad>(given, seed_of(spec));
}

std::unique_ptr<Codec> terngrad_from_wire(const WireParameters& parameters) {
  expect_unused_from_wire("terngrad", parameters, 2);
  const float clip = parameters[0] == 0 ? 0 : positive_float_from_wire("terngrad", "clip", parameters[0]);
  return std::make_unique<TernGrad>(clip, parameters[1]);
}

}  // namespace gradwire::compress
