#include "compress/dense/bf16.h"

#include "compress/dense/dense_codec.h"
#include "compress/payload/parameters.h"

namespace gradwire::compress {
namespace {

constexpr ParameterInfo kBf16Parameters[] = {
    {"nonfinite", "skip",
     "skip: an element whose gradient is NaN or infinite sends 0 and keeps its residual"},
};

}  // namespace

std::span<const ParameterInfo> bf16_parameters() noexcept { return kBf16Parameters; }

std::unique_ptr<Codec> make_bf16(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  return bf16_from_wire({});
}

std::unique_ptr<Codec> bf16_from_wire(const WireParameters& parameters) {
  expect_unused_from_wire("bf16", parameters, 0);
  return std::make_unique<DenseCodec>("bf16", WireId::kBf16, dense::Format::kBf16);
}

}  // namespace gradwire::compress
