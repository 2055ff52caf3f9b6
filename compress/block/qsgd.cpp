#include "compress/block/qsgd.h"

#include "compress/block/block_codec.h"
#include "compress/payload/parameters.h"

namespace gradwire::compress {
namespace {

constexpr std::size_t kDefaultBits = 4;
constexpr std::size_t kMostBits = 8;
constexpr std::size_t kDefaultBucket = 512;
constexpr std::size_t kLeastBucket = Dither::kGroup;

constexpr ParameterInfo kQsgdParameters[] = {
    {"bits", "4", "of an element, its sign included: 4 (7 levels) or 8 (127 levels)"},
    {"bucket", "512", "elements that share a scale, a power of two from 64 to 4096"},
    {"seed", "0", "of the draws, a whole number below 2^32"},
    {"nonfinite", "skip",
     "skip: an element whose gradient is NaN or infinite sends 0 and keeps its residual"},
};

std::unique_ptr<Codec> make_with(std::size_t bits, std::size_t bucket, std::uint32_t seed) {
  return std::make_unique<BlockCodec>(
      "qsgd", WireId::kQsgd, BlockForm{bits == 4 ? block::Code::kInt4 : block::Code::kInt8, bucket, seed},
      std::vector<Parameter>{{"bits", static_cast<double>(bits)},
                             {"bucket", static_cast<double>(bucket)},
                             {"seed", static_cast<double>(seed)},
                             {"nonfinite", "skip"}},
      WireParameters{static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bucket), seed, 0});
}

}  // namespace

std::span<const ParameterInfo> qsgd_parameters() noexcept { return kQsgdParameters; }

std::unique_ptr<Codec> make_qsgd(const CodecSpec& spec) {
  word_index(spec, "nonfinite", {"skip"});
  return make_with(power_of_two(spec, "bits", kDefaultBits, kDefaultBits, kMostBits),
                   power_of_two(spec, "bucket", kDefaultBucket, kLeastBucket, block::kMostBlock),
                   seed_of(spec));
}

std::unique_ptr<Codec> qsgd_from_wire(const WireParameters& parameters) {
  expect_unused_from_wire("qsgd", parameters, 3);
  return make_with(power_of_two_from_wire("qsgd", "bits", parameters[0], kDefaultBits, kMostBits),
                   power_of_two_from_wire("qsgd", "bucket", parameters[1], kLeastBucket, block::kMostBlock),
                   parameters[2]);
}

}  // namespace gradwire::compress
