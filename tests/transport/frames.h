// Frames with payloads that tell whether they arrived whole.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/transport/ear.h"
#include "transport/messenger.h"

namespace gradwire::transport {

inline Frame make_frame(Kind kind, std::uint64_t key, std::size_t payload_bytes = 0) {
  Frame frame;
  frame.header.kind = kind;
  frame.header.key = key;
  frame.payload = Buffer::allocate(payload_bytes);
  for (std::size_t i = 0; i < payload_bytes; ++i) {
    frame.payload.bytes()[i] = static_cast<std::byte>((key * 31 + i * 7) >> 2);
  }
  return frame;
}

inline bool has_payload_of(const Frame& frame, std::uint64_t key, std::size_t payload_bytes) {
  const Frame expected = make_frame(Kind::kPush, key, payload_bytes);
  return frame.payload.size_bytes() == payload_bytes &&
         (payload_bytes == 0 ||
          std::memcmp(frame.payload.bytes().data(), expected.payload.bytes().data(), payload_bytes) == 0);
}

inline std::vector<Frame> one(Frame frame) {
  std::vector<Frame> frames;
  frames.push_back(std::move(frame));
  return frames;
}

inline constexpr Node kWorker0{Role::kWorker, 0};
inline constexpr Node kWorker1{Role::kWorker, 1};
inline constexpr Node kServer0{Role::kServer, 0};
inline constexpr Node kServer1{Role::kServer, 1};

inline Counters counters_with(const Messenger& messenger, Node peer) {
  for (const PeerCounters& entry : messenger.counters()) {
    if (entry.peer == peer) return entry.counters;
  }
  return {};
}

}  // namespace gradwire::transport
