#include "compress/block/int4.h"

#include "compress/block/block_codec.h"
#include "compress/payload/parameters.h"

namespace gradwire::compress {
namespace {

constexpr std::size_t kInt4DefaultBlock = 128;

constexpr ParameterInfo kInt4Parameters[] = {
    {"block", "128", "elements that share a scale, a power of two from 32 to 4096"},
    {"nonfinite", "skip",
     "skip: an element whose gradient is NaN or infinite sends 0 and keeps its residual"},
};

std::unique_ptr<Codec> make_int4_with(std::size_t block) {
  return std::make_unique<BlockCodec>(
      "int4", WireId::kInt4, BlockForm{block::Code::kInt4, block, {}},
      std::vector<Parameter>{{"block", static_cast<double>(block)}, {"nonfinite", "skip"}},
      WireParameters{static_cast<std::uint32_t>(block), 0, 0, 0});
}

}  // namespace

std::span<const ParameterInfo> int4_parameters() noexcept { return kInt4Parameters; }

std::unique_ptr<Codec> make_int4(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  const std::size_t block =
      power_of_two(spec, "block", kInt4DefaultBlock, block::kLeastBlock, block::kMostBlock);
  return make_int4_with(block);
}

std::unique_ptr<Codec> int4_from_wire(const WireParameters& parameters) {
  expect_unused_from_wire("int4", parameters, 1);
  const std::size_t block =
      power_of_two_from_wire("int4", "block", parameters[0], block::kLeastBlock, block::kMostBlock);
  return make_int4_with(block);
}

}  // namespace gradwire::compress
