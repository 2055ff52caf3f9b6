// Payloads in flight without most of their zeros (compress/two_bit/lossless_payload.h). kFlagLossless marks
// them.
//
// Threading: pure functions; the pool is safe by itself.
#pragma once

#include <cstddef>

#include "compress/codec.h"
#include "transport/buffer.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

/// Replaces a payload, or an own-name reply, of one tensor by its shortened form where that is shorter, and
/// sets the flag then. A seal is lost.
void shorten(const compress::Codec& codec, std::size_t elements, transport::Buffer& payload,
             std::uint32_t& flags, transport::BufferPool& pool);

/// Makes a shortened payload or reply what it was and clears the flag; leaves others alone. Throws
/// DecodeError.
void restore(transport::Frame& frame, transport::BufferPool& pool);

}  // namespace gradwire::kvstore
