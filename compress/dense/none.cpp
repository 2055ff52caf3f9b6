#include "compress/dense/none.h"

#include "compress/dense/dense_codec.h"
#include "compress/payload/parameters.h"

namespace gradwire::compress {

std::span<const ParameterInfo> none_parameters() noexcept { return {}; }

std::unique_ptr<Codec> make_none(const CodecSpec&) { return none_from_wire({}); }

std::unique_ptr<Codec> none_from_wire(const WireParameters& parameters) {
  expect_unused_from_wire("none", parameters, 0);
  return std::make_unique<DenseCodec>("none", WireId::kNone, dense::Format::kF32);
}

}  // namespace gradwire::compress
