// CodecTable makes the codecs that frames name, each once.
//
// Threading: one owner. Lifetime: codecs live as long as the table.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "compress/codec.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

class CodecTable {
 public:
  /// Throws compress::DecodeError for a codec or parameters that do not exist.
  const compress::Codec& of(const transport::FrameHeader& header);

 private:
  std::map<std::pair<std::uint8_t, compress::WireParameters>, std::unique_ptr<compress::Codec>> codecs_;
};

}  // namespace gradwire::kvstore
