#include "kvstore/codec_table.h"

#include "compress/codecs.h"

namespace gradwire::kvstore {

const compress::Codec& CodecTable::of(const transport::FrameHeader& header) {
  const std::pair name(header.codec, header.codec_parameters);
  const auto found = codecs_.find(name);
  if (found != codecs_.end()) return *found->second;
  auto codec = compress::from_wire(static_cast<compress::WireId>(header.codec), header.codec_parameters);
  return *codecs_.emplace(name, std::move(codec)).first->second;
}

}  // namespace gradwire::kvstore
