#include "compress/block/nf2.h"

#include "compress/block/block_codec.h"
#include "compress/payload/parameters.h"

namespace gradwire::compress {
namespace {

constexpr std::size_t kNf2DefaultBlock = 128;

constexpr ParameterInfo kNf2Parameters[] = {
    {"block", "128", "elements that share a scale, a power of two from 32 to 4096"},
    {"nonfinite", "skip", "skip: a gradient that is NaN or infinite counts as 0"},
};

std::unique_ptr<Codec> make_nf2_with(std::size_t block) {
  return std::make_unique<BlockCodec>(
      "nf2", WireId::kNf2, BlockForm{block::Code::kNf2, block, {}},
      std::vector<Parameter>{{"block", static_cast<double>(block)}, {"nonfinite", "skip"}},
      WireParameters{static_cast<std::uint32_t>(block), 0, 0, 0});
}

}  // namespace

std::span<const ParameterInfo> nf2_parameters() noexcept { return kNf2Parameters; }

std::unique_ptr<Codec> make_nf2(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  const std::size_t block =
      power_of_two(spec, "block", kNf2DefaultBlock, block::kLeastBlock, block::kMostBlock);
  return make_nf2_with(block);
}

std::unique_ptr<Codec> nf2_from_wire(const WireParameters& parameters) {
  expect_unused_from_wire("nf2", parameters, 1);
  const std::size_t block =
      power_of_two_from_wire("nf2", "block", parameters[0], block::kLeastBlock, block::kMostBlock);
  return make_nf2_with(block);
}

}  // namespace gradwire::compress
