#include "kvstore/wire/answer.h"

#include <algorithm>
#include <span>
#include <utility>

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

Buffer text_payload(std::string_view text) {
  Buffer buffer = Buffer::allocate(text.size());
  std::ranges::copy(std::as_bytes(std::span(text)), buffer.bytes().begin());
  return buffer;
}

Frame answer_to(const FrameHeader& request, Kind kind, Buffer payload) {
  FrameHeader header = request;
  header.kind = kind;
  header.flags = 0;
  header.content = 0;
  header.dtype = 0;
  return {header, std::move(payload)};
}

Frame share(const Frame& frame) { return {frame.header, frame.payload.share()}; }

Frame refusal_of(const FrameHeader& request, const Refused& refused) {
  Frame error = answer_to(request, Kind::kError, text_payload(refused.text));
  error.header.content = static_cast<std::uint8_t>(refused.how);
  return error;
}

Frame held(const FrameHeader& request, std::span<const std::uint32_t> awaited, Kind kind) {
  Buffer ranks = Buffer::allocate(awaited.size_bytes());
  std::ranges::copy(std::as_bytes(awaited), ranks.bytes().begin());
  return answer_to(request, kind, std::move(ranks));
}

std::vector<std::uint32_t> awaited_in(const Frame& held) {
  const std::span<const std::byte> bytes = held.payload.bytes();
  std::vector<std::uint32_t> ranks(bytes.size() / sizeof(std::uint32_t));
  std::ranges::copy(bytes.first(ranks.size() * sizeof(std::uint32_t)),
                    std::as_writable_bytes(std::span(ranks)).begin());
  return ranks;
}

}  // namespace gradwire::kvstore
