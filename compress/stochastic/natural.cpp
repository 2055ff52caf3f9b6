#include "compress/stochastic/natural.h"

#include <cstring>
#include <string>

#include "compress/payload/parameters.h"
#include "compress/stochastic/natural_kernels.h"

namespace gradwire::compress {
namespace {

constexpr std::size_t kNaturalTileElements = 4096;

constexpr ParameterInfo kNaturalParameters[] = {
    {"seed", "0", "of the draws, a whole number below 2^32"},
    {"nonfinite", "skip",
     "skip: an element whose gradient is NaN or infinite sends 0 and keeps its residual"},
};

}  // namespace

Natural::Natural(std::uint32_t seed) noexcept
    : FloatSumCodec("natural", WireId::kNatural, kNaturalTileElements), seed_(seed) {}

CodecSpec Natural::spec() const {
  return {"natural", {{"seed", static_cast<double>(seed_)}, {"nonfinite", "skip"}}};
}

std::size_t Natural::max_encoded_size(std::size_t elements) const noexcept {
  return elements + natural::sign_bytes(elements);
}

/// Server rounds to nearest: it keeps what is left, and every rank that answers itself must answer alike.
bool Natural::encode_run(const float* grad, float* residual, const Run& run, const Position* position,
                         std::byte* out) const {
  std::byte* const exponents = out + run.first;
  std::byte* const signs = out + run.elements + run.first / 8;
  if (position == nullptr) return natural::encode(grad, residual, run.length, nullptr, exponents, signs);
  const Dither dither{seed_, *position};
  return natural::encode(grad, residual, run.length, &dither, exponents, signs);
}

void Natural::decode_run(Payload payload, const Run& run, bool add, float* out) const {
  natural::decode(payload.data() + run.first, payload.data() + run.elements + run.first / 8, run.length, add,
                  out);
}

std::string Natural::fault(Payload payload, std::size_t elements) const {
  constexpr int kInfinity = natural::kLargestExponent + 1;
  const void* const wrong = std::memchr(payload.data(), kInfinity, elements);
  if (wrong != nullptr) {
    return "the exponent of element " +
           std::to_string(static_cast<const std::byte*>(wrong) - payload.data()) +
           " is 255, expected at most 254";
  }
  if (elements % 8 != 0 && std::to_integer<unsigned>(payload.back()) >> (elements % 8) != 0) {
    return "there are signs beyond the last element";
  }
  return {};
}

std::span<const ParameterInfo> natural_parameters() noexcept { return kNaturalParameters; }

std::unique_ptr<Codec> make_natural(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  return std::make_unique<Natural>(seed_of(spec));
}

std::unique_ptr<Codec> natural_from_wire(const WireParameters& parameters) {
  expect_unused_from_wire("natural", parameters, 1);
  return std::make_unique<Natural>(parameters[0]);
}

}  // namespace gradwire::compress
