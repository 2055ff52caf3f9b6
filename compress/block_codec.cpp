#include "compress/block_codec.h"

#include <utility>
#include <vector>

#include "compress/block_kernels.h"
#include "compress/scales.h"

namespace gradwire::compress {

WireParameters BlockCodec::wire_parameters() const noexcept {
  return {static_cast<std::uint32_t>(block_), code_ == block::Code::kE5m2 ? 1u : 0u, 0, 0};
}

CodecSpec BlockCodec::spec() const {
  std::vector<Parameter> parameters{{"block", static_cast<double>(block_)}, {"nonfinite", "skip"}};
  if (code_ == block::Code::kE4m3) parameters.insert(parameters.begin(), {"format", "e4m3"});
  if (code_ == block::Code::kE5m2) parameters.insert(parameters.begin(), {"format", "e5m2"});
  return {std::string(name()), std::move(parameters)};
}

std::size_t BlockCodec::max_encoded_size(std::size_t elements) const noexcept {
  return code_offset(0, elements) + block::code_bytes(code_, elements);
}

std::size_t BlockCodec::code_offset(std::size_t i, std::size_t elements) const noexcept {
  return block::scale_count(elements, block_) * sizeof(float) + block::code_bytes(code_, i);
}

bool BlockCodec::encode_run(const float* grad, float* residual, const Run& run, const Position*,
                            std::byte* out) const {
  return block::encode(code_, block_, grad, residual, run.length, out + scale_offset(run.first),
                       out + code_offset(run.first, run.elements));
}

void BlockCodec::decode_run(Payload payload, const Run& run, bool add, float* out) const {
  block::decode(code_, block_, payload.data() + scale_offset(run.first),
                payload.data() + code_offset(run.first, run.elements), run.length, add, out);
}

std::string BlockCodec::fault(Payload payload, std::size_t elements) const {
  return wrong_scale(payload.data(), block::scale_count(elements, block_), "block");
}

}  // namespace gradwire::compress
