// CodecCache makes the codecs that frames name, each once.
//
// Threading: one owner. Lifetime: codecs live as long as the table.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "compress/codec.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

/// Makes the codec of a frame's payload. Throws as CodecCache::of().
std::unique_ptr<compress::Codec> codec_named_by(const transport::FrameHeader& header);

class CodecCache {
 public:
  /// Throws compress::DecodeError for a codec, parameters or dtype that do not exist.
  const compress::Codec& of(const transport::FrameHeader& header);

 private:
  using Name = std::tuple<std::uint8_t, std::uint8_t, compress::WireParameters>;  // codec, dtype, parameters
  std::map<Name, std::unique_ptr<compress::Codec>> codecs_;
};

}  // namespace gradwire::kvstore
