#include "compress/block/int8.h"

#include "compress/block/block_codec.h"
#include "compress/payload/parameters.h"

namespace gradwire::compress {
namespace {

constexpr std::size_t kInt8DefaultBlock = 256;

constexpr ParameterInfo kInt8Parameters[] = {
    {"block", "256", "elements that share a scale, a power of two from 32 to 4096"},
    {"nonfinite", "skip",
     "skip: an element whose gradient is NaN or infinite sends 0 and keeps its residual"},
};

std::unique_ptr<Codec> make_int8_with(std::size_t block) {
  return std::make_unique<BlockCodec>(
      "int8", WireId::kInt8, BlockForm{block::Code::kInt8, block, {}},
      std::vector<Parameter>{{"block", static_cast<double>(block)}, {"nonfinite", "skip"}},
      WireParameters{static_cast<std::uint32_t>(block), 0, 0, 0});
}

}  // namespace

std::span<const ParameterInfo> int8_parameters() noexcept { return kInt8Parameters; }

std::unique_ptr<Codec> make_int8(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  const std::size_t block =
      power_of_two(spec, "block", kInt8DefaultBlock, block::kLeastBlock, block::kMostBlock);
  return make_int8_with(block);
}

std::unique_ptr<Codec> int8_from_wire(const WireParameters& parameters) {
  expect_unused_from_wire("int8", parameters, 1);
  const std::size_t block =
      power_of_two_from_wire("int8", "block", parameters[0], block::kLeastBlock, block::kMostBlock);
  return make_int8_with(block);
}

}  // namespace gradwire::compress
