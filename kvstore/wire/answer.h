// What all answers of a server have in common.
//
// Threading: values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvstore/wire/protocol.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

/// A frame to send, and its receiver.
struct Answer {
  std::uint32_t worker = 0;
  transport::Frame frame;
};

/// Thrown for a request that is refused; becomes a kError frame.
struct Refused {
  Refusal how;
  std::string text;
};

transport::Buffer text_payload(std::string_view text);

/// Answers keep the request's identity: key, step, offset, count, priority. What they hold is theirs to say.
transport::Frame answer_to(const transport::FrameHeader& request, transport::Kind kind,
                           transport::Buffer payload = {});

transport::Frame refusal_of(const transport::FrameHeader& request, const Refused& refused);

/// Another handle on an answer, for another worker.
transport::Frame share(const transport::Frame& frame);

/// The push is here, and its answer waits for these workers; none: for somebody upstream.
transport::Frame held(const transport::FrameHeader& request, std::span<const std::uint32_t> awaited,
                      transport::Kind kind = transport::Kind::kHeld);

/// The workers that an answer of held() names.
std::vector<std::uint32_t> awaited_in(const transport::Frame& held);

}  // namespace gradwire::kvstore
