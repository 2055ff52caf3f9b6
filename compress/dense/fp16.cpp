#include "compress/dense/fp16.h"

#include "compress/dense/dense_codec.h"
#include "compress/payload/parameters.h"

namespace gradwire::compress {
namespace {

constexpr ParameterInfo kFp16Parameters[] = {
    {"nonfinite", "skip",
     "skip: an element whose gradient is NaN or infinite sends 0 and keeps its residual"},
};

}  // namespace

std::span<const ParameterInfo> fp16_parameters() noexcept { return kFp16Parameters; }

std::unique_ptr<Codec> make_fp16(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  return fp16_from_wire({});
}

std::unique_ptr<Codec> fp16_from_wire(const WireParameters& parameters) {
  expect_unused_from_wire("fp16", parameters, 0);
  return std::make_unique<DenseCodec>("fp16", WireId::kFp16, dense::Format::kF16);
}

}  // namespace gradwire::compress
