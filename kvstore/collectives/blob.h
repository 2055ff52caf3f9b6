// A blob's name and readers, and their places in a frame's header
// (wire/PROTOCOL.md, "Collectives").
//
// Threading: values and pure functions.
#pragma once

#include <compare>
#include <cstdint>

#include "transport/frame.h"

namespace gradwire::kvstore {

inline constexpr std::uint32_t kNobody = 0xFFFFFFFF;

/// Ordered by poster and sequence first, so that one collective's blobs of a poster are neighbours.
struct BlobId {
  std::uint32_t poster = 0;
  std::uint64_t sequence = 0;  ///< of the collective, counted by every worker alike
  std::uint64_t phase = 0;     ///< within the collective
  std::uint64_t offset = 0;    ///< bytes, within what the poster gives in this phase
  auto operator<=>(const BlobId&) const = default;
};

/// The readers of a blob: one worker, or all except its poster and one more.
struct Readers {
  std::uint32_t only = kNobody;    ///< kNobody: all
  std::uint32_t except = kNobody;  ///< counts when it is for all
  auto operator<=>(const Readers&) const = default;
};

inline transport::FrameHeader header_of(transport::Kind kind, const BlobId& id, std::uint64_t bytes,
                                        const Readers& readers = {}) {
  transport::FrameHeader header;
  header.kind = kind;
  header.key = id.sequence;
  header.step = id.phase;
  header.offset = id.offset;
  header.count = bytes;
  header.codec_parameters = {id.poster, readers.only, readers.except, 0};
  return header;
}

inline BlobId blob_id_of(const transport::FrameHeader& header) {
  return {header.codec_parameters[0], header.key, header.step, header.offset};
}

inline Readers readers_of(const transport::FrameHeader& header) {
  return {header.codec_parameters[1], header.codec_parameters[2]};
}

}  // namespace gradwire::kvstore
