#include "compress/dense/none_fp16_bf16.h"

#include "compress/dense/dense_codec.h"
#include "compress/payload/parameters.h"

namespace gradwire::compress {
namespace {

constexpr ParameterInfo kHalfParameters[] = {
    {"nonfinite", "skip",
     "skip: an element whose gradient is NaN or infinite sends 0 and keeps its residual"},
};

std::unique_ptr<Codec> from_wire(std::string_view name, WireId id, dense::Format format,
                                 const WireParameters& parameters) {
  expect_unused_from_wire(name, parameters, 0);
  return std::make_unique<DenseCodec>(name, id, format);
}

}  // namespace

std::span<const ParameterInfo> none_parameters() noexcept { return {}; }
std::unique_ptr<Codec> make_none(const CodecSpec&) { return none_from_wire({}); }
std::unique_ptr<Codec> none_from_wire(const WireParameters& parameters) {
  return from_wire("none", WireId::kNone, dense::Format::kF32, parameters);
}

std::span<const ParameterInfo> half_parameters() noexcept { return kHalfParameters; }

std::unique_ptr<Codec> make_fp16(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  return fp16_from_wire({});
}
std::unique_ptr<Codec> fp16_from_wire(const WireParameters& parameters) {
  return from_wire("fp16", WireId::kFp16, dense::Format::kF16, parameters);
}

std::unique_ptr<Codec> make_bf16(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  return bf16_from_wire({});
}
std::unique_ptr<Codec> bf16_from_wire(const WireParameters& parameters) {
  return from_wire("bf16", WireId::kBf16, dense::Format::kBf16, parameters);
}

}  // namespace gradwire::compress
