#include "compress/block/int8_int4_nf2_nf4.h"

#include "compress/block/block_codec.h"
#include "compress/payload/parameters.h"

namespace gradwire::compress {
namespace {

constexpr std::string_view kBlockHelp = "elements that share a scale, a power of two from 32 to 4096";

constexpr ParameterInfo kInt8Parameters[] = {
    {"block", "256", kBlockHelp},
    {"nonfinite", "skip",
     "skip: an element whose gradient is NaN or infinite sends 0 and keeps its residual"},
};
constexpr ParameterInfo kFourBitParameters[] = {{"block", "128", kBlockHelp}, kInt8Parameters[1]};
constexpr ParameterInfo kNf2Parameters[] = {
    {"block", "128", kBlockHelp},
    {"nonfinite", "skip", "skip: a gradient that is NaN or infinite counts as 0"},
};

struct Kind {
  std::string_view name;
  WireId wire_id;
  block::Code code;
  std::size_t default_block;
};

constexpr Kind kInt8{"int8", WireId::kInt8, block::Code::kInt8, 256};
constexpr Kind kInt4{"int4", WireId::kInt4, block::Code::kInt4, 128};
constexpr Kind kNf2{"nf2", WireId::kNf2, block::Code::kNf2, 128};
constexpr Kind kNf4{"nf4", WireId::kNf4, block::Code::kNf4, 128};

std::unique_ptr<Codec> make_with(const Kind& kind, std::size_t block) {
  return std::make_unique<BlockCodec>(
      kind.name, kind.wire_id, BlockForm{kind.code, block, {}},
      std::vector<Parameter>{{"block", static_cast<double>(block)}, {"nonfinite", "skip"}},
      WireParameters{static_cast<std::uint32_t>(block), 0, 0, 0});
}

std::unique_ptr<Codec> make_kind(const Kind& kind, const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  return make_with(kind,
                   power_of_two(spec, "block", kind.default_block, block::kLeastBlock, block::kMostBlock));
}

std::unique_ptr<Codec> kind_from_wire(const Kind& kind, const WireParameters& parameters) {
  expect_unused_from_wire(kind.name, parameters, 1);
  return make_with(
      kind, power_of_two_from_wire(kind.name, "block", parameters[0], block::kLeastBlock, block::kMostBlock));
}

}  // namespace

std::span<const ParameterInfo> int8_parameters() noexcept { return kInt8Parameters; }
std::unique_ptr<Codec> make_int8(const CodecSpec& spec) { return make_kind(kInt8, spec); }
std::unique_ptr<Codec> int8_from_wire(const WireParameters& parameters) {
  return kind_from_wire(kInt8, parameters);
}

std::span<const ParameterInfo> int4_parameters() noexcept { return kFourBitParameters; }
std::unique_ptr<Codec> make_int4(const CodecSpec& spec) { return make_kind(kInt4, spec); }
std::unique_ptr<Codec> int4_from_wire(const WireParameters& parameters) {
  return kind_from_wire(kInt4, parameters);
}

std::span<const ParameterInfo> nf2_parameters() noexcept { return kNf2Parameters; }
std::unique_ptr<Codec> make_nf2(const CodecSpec& spec) { return make_kind(kNf2, spec); }
std::unique_ptr<Codec> nf2_from_wire(const WireParameters& parameters) {
  return kind_from_wire(kNf2, parameters);
}

std::span<const ParameterInfo> nf4_parameters() noexcept { return kFourBitParameters; }
std::unique_ptr<Codec> make_nf4(const CodecSpec& spec) { return make_kind(kNf4, spec); }
std::unique_ptr<Codec> nf4_from_wire(const WireParameters& parameters) {
  return kind_from_wire(kNf4, parameters);
}

}  // namespace gradwire::compress
