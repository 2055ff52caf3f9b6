#include "kvstore/wire/codec_cache.h"

#include <fmt/format.h>

#include "compress/codecs.h"
#include "compress/float64_codec.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {

std::unique_ptr<compress::Codec> codec_named_by(const transport::FrameHeader& header) {
  const auto id = static_cast<compress::WireId>(header.codec);
  if (dtype_of(header) == Dtype::kFloat32) return compress::from_wire(id, header.codec_parameters);
  if (dtype_of(header) != Dtype::kFloat64 || id != compress::WireId::kNone ||
      header.codec_parameters != compress::WireParameters{}) {
    throw compress::DecodeError(fmt::format(
        "codec id {} of elements of dtype {} is unknown here; the sender may run a newer gradwire",
        header.codec, header.dtype));
  }
  return std::make_unique<compress::Float64Codec>();
}

const compress::Codec& CodecCache::of(const transport::FrameHeader& header) {
  const Name name(header.codec, header.dtype, header.codec_parameters);
  const auto found = codecs_.find(name);
  if (found != codecs_.end()) return *found->second;
  return *codecs_.emplace(name, codec_named_by(header)).first->second;
}

}  // namespace gradwire::kvstore
