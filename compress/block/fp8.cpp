#include "compress/block/fp8.h"

#include <iterator>
#include <string>
#include <string_view>

#include "compress/block/block_codec.h"
#include "compress/payload/parameters.h"

namespace gradwire::compress {
namespace {

constexpr std::size_t kFp8DefaultBlock = 256;
struct Format {
  std::string_view name;
  block::Code code;
};

constexpr Format kFormats[] = {
    // by their number on the wire
    {"e4m3", block::Code::kE4m3},
    {"e5m2", block::Code::kE5m2},
};

constexpr ParameterInfo kFp8Parameters[] = {
    {"format", "e4m3", "e4m3: 3 bits of fraction, 2^-9 to 448 before scaling; e5m2: 2 bits, 2^-16 to 57344"},
    {"block", "256", "elements that share a scale, a power of two from 32 to 4096"},
    {"nonfinite", "skip",
     "skip: an element whose gradient is NaN or infinite sends 0 and keeps its residual"},
};

std::unique_ptr<Codec> make_fp8_with(std::size_t format, std::size_t block) {
  return std::make_unique<BlockCodec>(
      "fp8", WireId::kFp8, BlockForm{kFormats[format].code, block, {}},
      std::vector<Parameter>{{"format", std::string(kFormats[format].name)},
                             {"block", static_cast<double>(block)},
                             {"nonfinite", "skip"}},
      WireParameters{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(format), 0, 0});
}

}  // namespace

std::span<const ParameterInfo> fp8_parameters() noexcept { return kFp8Parameters; }

std::unique_ptr<Codec> make_fp8(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  const std::size_t format = word_index(spec, "format", {kFormats[0].name, kFormats[1].name});
  const std::size_t block =
      power_of_two(spec, "block", kFp8DefaultBlock, block::kLeastBlock, block::kMostBlock);
  return make_fp8_with(format, block);
}

std::unique_ptr<Codec> fp8_from_wire(const WireParameters& parameters) {
  expect_unused_from_wire("fp8", parameters, 2);
  const std::size_t block =
      power_of_two_from_wire("fp8", "block", parameters[0], block::kLeastBlock, block::kMostBlock);
  if (parameters[1] >= std::size(kFormats)) {
    throw DecodeError("fp8: the frame's format is " + std::to_string(parameters[1]) +
                      ", expected 0 (e4m3) or 1 (e5m2)");
  }
  return make_fp8_with(parameters[1], block);
}

}  // namespace gradwire::compress
