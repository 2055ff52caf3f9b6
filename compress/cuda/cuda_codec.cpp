#include "compress/cuda/cuda_codec.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "compress/codecs.h"
#include "compress/cuda/cuda_twins.h"

namespace gradwire::compress {
namespace {

struct Twin {
  std::string_view codec;
  std::unique_ptr<DeviceCodec> (*make)(std::unique_ptr<Codec>);
};

constexpr Twin kTwins[] = {
    {"none", make_dense_cuda},      {"fp16", make_dense_cuda},        {"bf16", make_dense_cuda},
    {"2bit", make_two_bit_cuda},    {"int8", make_block_cuda},        {"int4", make_block_cuda},
    {"nf2", make_block_cuda},       {"nf4", make_block_cuda},         {"fp8", make_block_cuda},
    {"1bit", make_one_bit_cuda},    {"topk", make_top_k_cuda},        {"qsgd", make_block_cuda},
    {"natural", make_natural_cuda}, {"terngrad", make_terngrad_cuda},
};

}  // namespace

std::unique_ptr<DeviceCodec> make_cuda_codec(const CodecSpec& spec) {
  std::unique_ptr<Codec> codec = make(spec);
  const auto* const twin = std::find_if(std::begin(kTwins), std::end(kTwins),
                                        [&](const Twin& row) { return row.codec == codec->name(); });
  return twin == std::end(kTwins) ? nullptr : twin->make(std::move(codec));
}

}  // namespace gradwire::compress
