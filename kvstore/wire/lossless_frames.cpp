#include "kvstore/wire/lossless_frames.h"

#include <utility>

#include "compress/two_bit/lossless_payload.h"
#include "kvstore/wire/codec_cache.h"

namespace gradwire::kvstore {

using transport::Buffer;

void shorten(const compress::Codec& codec, std::size_t elements, Buffer& payload, std::uint32_t& flags,
             transport::BufferPool& pool) {
  Buffer out =
      pool.take(payload.size_bytes() + compress::lossless::kUnitHeadBytes * compress::unit_count(elements));
  const std::size_t bytes = compress::lossless::shorten(codec, payload.bytes(), elements, out.bytes());
  if (bytes == 0) return;
  out.truncate(bytes);
  payload = std::move(out);
  flags |= transport::kFlagLossless;
}

void restore(transport::Frame& frame, transport::BufferPool& pool) {
  transport::FrameHeader& header = frame.header;
  if ((header.flags & transport::kFlagLossless) == 0) return;
  if ((header.flags & transport::kFlagSegments) != 0) {
    throw compress::DecodeError("lossless: a payload of several tensors is said to be shortened");
  }
  const auto codec = codec_named_by(header);
  const std::size_t bytes = compress::lossless::restored_bytes(*codec, frame.payload.bytes(), header.count);
  Buffer out = pool.take(bytes);
  compress::lossless::restore(*codec, frame.payload.bytes(), header.count, out.bytes());
  frame.payload = std::move(out);
  header.flags &= ~transport::kFlagLossless;
}

}  // namespace gradwire::kvstore
