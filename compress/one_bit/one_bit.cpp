#include "compress/one_bit/one_bit.h"

#include <algorithm>
#include <limits>
#include <string>

#include "compress/one_bit/one_bit_kernels.h"
#include "compress/one_bit/one_bit_votes.h"
#include "compress/payload/little_endian.h"
#include "compress/payload/parameters.h"
#include "compress/payload/scales.h"
#include "compress/two_bit/two_bit_kernels.h"

namespace gradwire::compress {
namespace {

constexpr std::size_t kTileElements = 4096;
constexpr float kDefaultThreshold = 0.5f;  // MXNet's, for an error's example
constexpr std::uint32_t kForm = 1;         // of the mean's payloads; those of form 0 had no mark for zeros

constexpr ParameterInfo kParameters[] = {
    {"threshold", "mean",
     "mean: the sign, times the mean of |gradient + residual| in its codec unit; a number above 0: +1 above "
     "it, else -1, as MXNet 2.0"},
    {"nonfinite", "skip", "skip: a gradient that is NaN or infinite counts as 0"},
};

one_bit::SignCode code_of(float level) { return {0, level, one_bit::Zeros::kMarked}; }

/// The mean of |x| over what is sent of a unit, x that are not finite left out of the sum.
float mean_magnitude(const float* grad, const float* residual, std::size_t elements) {
  two_bit::UnitSums sums;
  two_bit::measure(grad, residual, elements, std::numeric_limits<float>::infinity(), &sums);
  const double sum = sums.sum_all();
  const std::size_t sent = one_bit::sent_elements(grad, residual, elements);
  return sent == 0 ? 0 : static_cast<float>(sum / static_cast<double>(sent));
}

constexpr std::size_t header_bytes(std::size_t elements) { return unit_count(elements) * sizeof(float); }

}  // namespace

OneBitMean::OneBitMean() noexcept : FloatSumCodec("1bit", WireId::kOneBit, kTileElements) {}

WireParameters OneBitMean::wire_parameters() const noexcept { return {0, kForm, 0, 0}; }

CodecSpec OneBitMean::spec() const { return {"1bit", {{"threshold", "mean"}, {"nonfinite", "skip"}}}; }

std::size_t OneBitMean::max_encoded_size(std::size_t elements) const noexcept {
  return header_bytes(elements) + one_bit::packed_bytes(elements);
}

bool OneBitMean::encode_run(const float* grad, float* residual, const Run& run, const Position*,
                            std::byte* out) const {
  bool nonfinite = false;
  for (std::size_t i = 0; i < run.length; i += kUnitElements) {
    const std::size_t length = std::min(kUnitElements, run.length - i);
    float* const kept = residual == nullptr ? nullptr : residual + i;
    const float level = mean_magnitude(grad + i, kept, length);
    store(level, out + (run.first + i) / kUnitElements * sizeof(float));
    nonfinite |= one_bit::encode(grad + i, kept, length, code_of(level),
                                 out + header_bytes(run.elements) + (run.first + i) / 8);
  }
  return nonfinite;
}

void OneBitMean::decode_run(Payload payload, const Run& run, bool add, float* out) const {
  const auto level = load<float>(payload.data() + run.first / kUnitElements * sizeof(float));
  one_bit::decode(payload.data() + header_bytes(run.elements) + run.first / 8, run.length, code_of(level),
                  add, out);
}

std::string OneBitMean::fault(Payload payload, std::size_t elements) const {
  return wrong_scale(payload.first(unit_count(elements) * sizeof(float)), unit_count(elements), "unit");
}

std::span<const ParameterInfo> one_bit_parameters() noexcept { return kParameters; }

std::unique_ptr<Codec> make_one_bit(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  const ParameterValue* const threshold = find_parameter(spec, "threshold");
  if (threshold == nullptr || *threshold == ParameterValue("mean")) return std::make_unique<OneBitMean>();
  return std::make_unique<OneBitVotes>(
      positive_float(spec, "threshold", kDefaultThreshold, " or the word mean"));
}

std::unique_ptr<Codec> one_bit_from_wire(const WireParameters& parameters) {
  if (parameters[0] == 0 && parameters[1] != kForm) {
    throw DecodeError("1bit: the sender's payloads are of form " + std::to_string(parameters[1]) +
                      ", this gradwire's of form " + std::to_string(kForm) +
                      "; run one version of gradwire on all ranks");
  }
  expect_unused_from_wire("1bit", parameters, parameters[0] == 0 ? 2 : 1);
  if (parameters[0] == 0) return std::make_unique<OneBitMean>();
  return std::make_unique<OneBitVotes>(positive_float_from_wire("1bit", "threshold", parameters[0]));
}

}  // namespace gradwire::compress
