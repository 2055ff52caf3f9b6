#include "compress/sparse/top_k.h"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "compress/dense/dense_kernels.h"
#include "compress/payload/little_endian.h"
#include "compress/payload/parameters.h"
#include "compress/sparse/largest_elements.h"
#include "compress/sparse/sparse_kernels.h"
#include "compress/sparse/value_format.h"

namespace gradwire::compress {
namespace {

constexpr float kTopKDefaultRatio = 0.01f;

constexpr ParameterInfo kTopKParameters[] = {
    {"ratio", "0.01", "elements sent of each 65 536, above 0 and at most 1"},
    {"values", "fp32", "how a value travels: fp32, fp16 or bf16"},
    {"nonfinite", "skip",
     "skip: an element whose gradient is NaN or infinite sends 0 and keeps its residual"},
};

using Index = std::uint16_t;
// An index within a unit has 16 bits in a payload.
static_assert(kUnitElements - 1 <= 0xffff);

/// What one thread needs to encode a unit: its x, and the way to the largest of them.
struct TopKWorkplace {
  std::vector<float> x = std::vector<float>(kUnitElements);
  std::vector<float> values = std::vector<float>(kUnitElements);
  sparse::LargestElements largest;
};

TopKWorkplace& top_k_workplace() {
  // Too long for a stack, and too slow to allocate in every call: each thread makes one, once.
  thread_local TopKWorkplace mine;
  return mine;
}

}  // namespace

TopK::TopK(float ratio, dense::Format values) noexcept
    : FloatSumCodec("topk", WireId::kTopK, kUnitElements), ratio_(ratio), values_(values) {}

WireParameters TopK::wire_parameters() const noexcept {
  return {std::bit_cast<std::uint32_t>(ratio_), number_of(values_), 0, 0};
}

CodecSpec TopK::spec() const {
  return {"topk",
          {{"ratio", static_cast<double>(ratio_)},
           {"values", std::string(name_of(values_))},
           {"nonfinite", "skip"}}};
}

std::size_t TopK::unit_bytes(std::size_t elements) const noexcept {
  return sparse::sent_count(ratio_, elements) * (sizeof(Index) + dense::bytes_per_element(values_));
}

std::size_t TopK::max_encoded_size(std::size_t elements) const noexcept {
  return elements / kUnitElements * unit_bytes(kUnitElements) + unit_bytes(elements % kUnitElements);
}

bool TopK::encode_unit(const float* grad, float* residual, std::size_t elements, std::byte* out) const {
  TopKWorkplace& here = top_k_workplace();
  // x becomes the residual of all elements. Those that are sent are taken from it below.
  bool nonfinite = sparse::accumulate(grad, residual, elements, here.x.data());
  const auto sent = here.largest.find(here.x.data(), elements, sparse::sent_count(ratio_, elements));
  std::byte* const value_bytes = out + sent.size() * sizeof(Index);
  for (std::size_t i = 0; i < sent.size(); ++i) {
    store(static_cast<Index>(sent[i]), out + i * sizeof(Index));
    here.values[i] = here.x[sent[i]];
  }
  nonfinite |= dense::encode(values_, here.values.data(), nullptr, sent.size(), value_bytes);
  if (residual == nullptr) return nonfinite;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    // An x that was not finite sends 0, so its residual stays.
    residual[sent[i]] -= dense::decode_element(values_, value_bytes + i * dense::bytes_per_element(values_));
  }
  return nonfinite;
}

bool TopK::encode_run(const float* grad, float* residual, const Run& run, const Position*,
                      std::byte* out) const {
  bool nonfinite = false;
  for (std::size_t i = 0; i < run.length; i += kUnitElements) {
    nonfinite |= encode_unit(grad + i, residual == nullptr ? nullptr : residual + i,
                             std::min(kUnitElements, run.length - i),
                             out + (run.first + i) / kUnitElements * unit_bytes(kUnitElements));
  }
  return nonfinite;
}

void TopK::decode_run(Payload payload, const Run& run, bool add, float* out) const {
  const std::byte* const unit = payload.data() + run.first / kUnitElements * unit_bytes(kUnitElements);
  const std::size_t count = sparse::sent_count(ratio_, run.length);
  const std::byte* const values = unit + count * sizeof(Index);
  if (!add) std::fill_n(out, run.length, 0.0f);
  for (std::size_t i = 0; i < count; ++i) {
    out[load<Index>(unit + i * sizeof(Index))] +=
        dense::decode_element(values_, values + i * dense::bytes_per_element(values_));
  }
}

std::string TopK::fault(Payload payload, std::size_t elements) const {
  const std::byte* unit = payload.data();
  for (std::size_t first = 0; first < elements; first += kUnitElements) {
    const std::size_t length = std::min(kUnitElements, elements - first);
    const std::size_t count = sparse::sent_count(ratio_, length);
    std::size_t least = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t index = load<Index>(unit + i * sizeof(Index));
      // Ascending: each element occurs once, so vectors and devices may add in any order.
      if (index < least || index >= length) {
        return "index " + std::to_string(i) + " of unit " + std::to_string(first / kUnitElements) + " is " +
               std::to_string(index) + ", expected " + std::to_string(least) + " to " +
               std::to_string(length - 1);
      }
      least = index + 1;
    }
    unit += unit_bytes(length);
  }
  return {};
}

std::span<const ParameterInfo> top_k_parameters() noexcept { return kTopKParameters; }

std::unique_ptr<Codec> make_top_k(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  return std::make_unique<TopK>(ratio_of(spec, kTopKDefaultRatio), value_format(spec));
}

std::unique_ptr<Codec> top_k_from_wire(const WireParameters& parameters) {
  expect_unused_from_wire("topk", parameters, 2);
  return std::make_unique<TopK>(ratio_from_wire("topk", parameters[0]),
                                value_format_from_wire("topk", parameters[1]));
}

}  // namespace gradwire::compress
