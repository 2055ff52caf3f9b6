#include "compress/sparse/random_k.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "compress/dense/dense_kernels.h"
#include "compress/payload/little_endian.h"
#include "compress/payload/parameters.h"
#include "compress/payload/payloads.h"
#include "compress/sparse/sparse_kernels.h"
#include "compress/sparse/value_format.h"

namespace gradwire::compress {
namespace {

constexpr float kRandomKDefaultRatio = 0.01f;
constexpr std::size_t kHeaderBytes = 16;
constexpr std::uint32_t kDrawRule = 1;  // 0 was a Feistel permutation, which favoured some of few elements

constexpr ParameterInfo kRandomKParameters[] = {
    {"ratio", "0.01", "elements sent of each 65 536, above 0 and at most 1"},
    {"seed", "0", "of the draws, a whole number below 2^32, the same on all ranks"},
    {"values", "fp32", "how a value travels: fp32, fp16 or bf16"},
    {"nonfinite", "skip",
     "skip: an element whose gradient is NaN or infinite sends 0 and keeps its residual"},
};

/// What one thread needs to encode or decode a unit.
struct RandomKWorkplace {
  std::vector<float> x = std::vector<float>(kUnitElements);
  std::vector<float> values = std::vector<float>(kUnitElements);
  RandomSelection drawn;
};

RandomKWorkplace& random_k_workplace() {
  // Too long for a stack, and too slow to allocate in every call: each thread makes one, once.
  thread_local RandomKWorkplace mine;
  return mine;
}

}  // namespace

RandomK::RandomK(float ratio, std::uint32_t seed, dense::Format values) noexcept
    : FloatSumCodec("randomk", WireId::kRandomK, kUnitElements),
      ratio_(ratio),
      seed_(seed),
      values_(values) {}

WireParameters RandomK::wire_parameters() const noexcept {
  return {std::bit_cast<std::uint32_t>(ratio_), seed_, number_of(values_), kDrawRule};
}

CodecSpec RandomK::spec() const {
  return {"randomk",
          {{"ratio", static_cast<double>(ratio_)},
           {"seed", static_cast<double>(seed_)},
           {"values", std::string(name_of(values_))},
           {"nonfinite", "skip"}}};
}

std::size_t RandomK::value_count(std::size_t elements) const noexcept {
  return elements / kUnitElements * sparse::sent_count(ratio_, kUnitElements) +
         sparse::sent_count(ratio_, elements % kUnitElements);
}

std::size_t RandomK::max_encoded_size(std::size_t elements) const noexcept {
  return kHeaderBytes + value_count(elements) * dense::bytes_per_element(values_);
}

std::span<const std::uint32_t> RandomK::drawn(const std::byte* header, std::size_t first,
                                              std::size_t elements) const {
  // Everything that decides the draw is in the header, so that every receiver draws the same elements.
  const std::uint32_t unit =
      load<std::uint32_t>(header + 12) + static_cast<std::uint32_t>(first / kUnitElements);
  return random_k_workplace().drawn.draw(
      {seed_, load<std::uint32_t>(header + 8), load<std::uint32_t>(header), unit}, elements,
      sparse::sent_count(ratio_, elements));
}

bool RandomK::encode_unit(const float* grad, float* residual, std::size_t elements,
                          std::span<const std::uint32_t> drawn, std::byte* out) const {
  RandomKWorkplace& here = random_k_workplace();
  // x becomes the residual of all elements. Those that are sent are taken from it below.
  bool nonfinite = sparse::accumulate(grad, residual, elements, here.x.data());
  for (std::size_t i = 0; i < drawn.size(); ++i) here.values[i] = here.x[drawn[i]];
  nonfinite |= dense::encode(values_, here.values.data(), nullptr, drawn.size(), out);
  if (residual == nullptr) return nonfinite;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    // An x that was not finite sends 0, so its residual stays.
    residual[drawn[i]] -= dense::decode_element(values_, out + i * dense::bytes_per_element(values_));
  }
  return nonfinite;
}

bool RandomK::encode_run(const float* grad, float* residual, const Run& run, const Position* position,
                         std::byte* out) const {
  const Position& here =
      *position;  // only the worker's end gets here: encode_reply() adds values as they are
  store(here.step, out);
  store(here.key, out + 8);
  store(static_cast<std::uint32_t>(here.offset / kUnitElements), out + 12);
  bool nonfinite = false;
  for (std::size_t i = 0; i < run.length; i += kUnitElements) {
    const std::size_t length = std::min(kUnitElements, run.length - i);
    std::byte* const values = out + kHeaderBytes + value_count(i) * dense::bytes_per_element(values_);
    nonfinite |= encode_unit(grad + i, residual == nullptr ? nullptr : residual + i, length,
                             drawn(out, i, length), values);
  }
  return nonfinite;
}

void RandomK::decode_run(Payload payload, const Run& run, bool add, float* out) const {
  const std::size_t width = dense::bytes_per_element(values_);
  const std::byte* const values = payload.data() + kHeaderBytes + value_count(run.first) * width;
  const auto chosen = drawn(payload.data(), run.first, run.length);
  if (!add) std::fill_n(out, run.length, 0.0f);
  for (std::size_t i = 0; i < chosen.size(); ++i)
    out[chosen[i]] += dense::decode_element(values_, values + i * width);
}

std::size_t RandomK::max_reply_size(std::size_t elements, std::size_t ways, ReplyKind kind) const noexcept {
  if (kind != ReplyKind::kSame) return FloatSumCodec::max_reply_size(elements, ways, kind);
  return kHeaderBytes + value_count(elements) * sizeof(float);
}

Encoded RandomK::encode_reply(std::span<const Payload> payloads, std::size_t elements, ReplyKind kind,
                              std::span<float> residual, std::span<std::byte> out) const {
  if (kind != ReplyKind::kSame) {
    return FloatSumCodec::encode_reply(payloads, elements, kind, residual, out);
  }
  expect_ways(name(), payloads.size());
  expect_payloads(payloads, elements);
  const std::size_t bytes = max_reply_size(elements, payloads.size(), kind);
  expect_encode_spans(name(), elements, residual.size(), out.size(), bytes);
  for (std::size_t i = 1; i < payloads.size(); ++i) {
    if (std::memcmp(payloads[i].data(), payloads[0].data(), kHeaderBytes) == 0) continue;
    // Values are added by their place, without a look at their elements: equal headers mean equal elements.
    throw DecodeError("randomk: " + payload_name(i, payloads.size()) +
                      " is of another round, key or part than payload 0, so their elements differ");
  }
  // A reply has the header of its payloads, so it is read like one.
  std::copy_n(payloads[0].data(), kHeaderBytes, out.data());
  float* const sums = random_k_workplace().values.data();
  bool nonfinite = false;
  const std::size_t count = value_count(elements);
  for (std::size_t i = 0; i < count; i += kUnitElements) {
    const std::size_t length = std::min(kUnitElements, count - i);
    dense::sum(values_, payloads, kHeaderBytes + i * dense::bytes_per_element(values_), length, sums);
    // Sums go as float32 and nothing stays at the server, which draws nothing (README, Random numbers).
    nonfinite |= dense::encode(dense::Format::kF32, sums, nullptr, length,
                               out.data() + kHeaderBytes + i * sizeof(float));
  }
  return {bytes, nonfinite};
}

void RandomK::decode_reply(Payload reply, std::size_t ways, ReplyKind kind, std::span<float> out,
                           std::span<UnitScale> next) const {
  if (kind != ReplyKind::kSame) return FloatSumCodec::decode_reply(reply, ways, kind, out, next);
  expect_ways(name(), ways);
  expect_bytes(name(), "the reply", reply.size(), max_reply_size(out.size(), ways, kind), out.size());
  // Values of a reply are float32, whatever they were on the way up.
  const RandomK reader(ratio_, seed_, dense::Format::kF32);
  reader.sum_run({&reply, 1}, {0, out.size(), out.size()}, out.data());
}

std::span<const ParameterInfo> random_k_parameters() noexcept { return kRandomKParameters; }

std::unique_ptr<Codec> make_random_k(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  return std::make_unique<RandomK>(ratio_of(spec, kRandomKDefaultRatio), seed_of(spec), value_format(spec));
}

std::unique_ptr<Codec> random_k_from_wire(const WireParameters& parameters) {
  // Another rule draws other elements from the same header, and nothing else would notice.
  if (parameters[3] != kDrawRule) {
    throw DecodeError("randomk: the sender draws elements by rule " + std::to_string(parameters[3]) +
                      ", this gradwire by rule " + std::to_string(kDrawRule) +
                      "; run one version of gradwire on all ranks");
  }
  return std::make_unique<RandomK>(ratio_from_wire("randomk", parameters[0]), parameters[1],
                                   value_format_from_wire("randomk", parameters[2]));
}

}  // namespace gradwire::compress
