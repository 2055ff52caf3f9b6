// Subject is what a message is about. Each end hands a message to the part of that subject: the one table of
// message kinds that they share.
//
// Threading: a value and pure functions.
#pragma once

#include <cstdint>

#include "transport/frame.h"

namespace gradwire::kvstore {

enum class Subject : std::uint8_t { kTensor, kRows, kBlob, kCommand };

/// For a server. A kind that is no request counts as a tensor's, whose handler refuses it.
Subject subject_of_request(transport::Kind kind);

/// For a worker: what the answered request was about.
Subject subject_of_answer(const transport::FrameHeader& answer);

}  // namespace gradwire::kvstore
