// The codecs' twins on a Thrust backend of the host, for tests.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "compress/codecs.h"
#include "compress/device/block_thrust.h"
#include "compress/device/dense_thrust.h"
#include "compress/device/natural_thrust.h"
#include "compress/device/one_bit_thrust.h"
#include "compress/device/terngrad_thrust.h"
#include "compress/device/top_k_thrust.h"
#include "compress/device/two_bit_auto_thrust.h"

namespace gradwire::compress {

/// Makes the twin of the codec that spec names; null where it has none.
template <typename Backend>
std::unique_ptr<DeviceCodec> make_thrust_twin(const CodecSpec& spec) {
  std::unique_ptr<Codec> codec = make(spec);
  const std::string_view name = codec->name();
  using Make = std::unique_ptr<DeviceCodec> (*)(std::unique_ptr<Codec>);
  constexpr std::pair<std::string_view, Make> kTwins[] = {
      {"none", make_dense_twin<Backend>},      {"fp16", make_dense_twin<Backend>},
      {"bf16", make_dense_twin<Backend>},      {"2bit", make_two_bit_twin<Backend>},
      {"int8", make_block_twin<Backend>},      {"int4", make_block_twin<Backend>},
      {"nf2", make_block_twin<Backend>},       {"nf4", make_block_twin<Backend>},
      {"fp8", make_block_twin<Backend>},       {"1bit", make_one_bit_twin<Backend>},
      {"topk", make_top_k_twin<Backend>},      {"qsgd", make_block_twin<Backend>},
      {"natural", make_natural_twin<Backend>}, {"terngrad", make_terngrad_twin<Backend>},
  };
  for (const auto& [twin, make_twin] : kTwins) {
    if (twin == name) return make_twin(std::move(codec));
  }
  return nullptr;
}

}  // namespace gradwire::compress
