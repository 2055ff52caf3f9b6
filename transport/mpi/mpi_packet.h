// MpiPacket is frames that travel together, as MPI messages: a head with all headers and the small payloads,
// then one message (or several, where it is very long) for each other payload. Byte layout:
// transport/PROTOCOL.md ("Over MPI").
//
// Threading: values and pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "transport/frame.h"

namespace gradwire::transport {

/// Payloads up to here travel in the head: a message of its own costs more than the copy. Part of the wire
/// format.
inline constexpr std::size_t kInlinePayloadBytes = 16384;

struct MpiPacket {
  Buffer head;
  std::vector<Buffer> payloads;  ///< the large ones, in the order of their frames
};

/// Payloads travel with the seal they have, or without; small ones are copied and released.
MpiPacket pack_for_mpi(std::vector<Frame> frames);

/// A packet whose head is here.
class ArrivingParcel {
 public:
  /// Reads a head and takes memory for what follows. Throws FrameError.
  ArrivingParcel(Buffer head, BufferPool& pool);

  /// Where the payloads belong that are under way, in their order.
  std::span<Buffer> awaited() noexcept { return awaited_; }
  /// Requires that all that was awaited is here; small payloads keep the head's memory. Seals are taken over,
  /// and compared for control frames alone. Throws FrameError.
  std::vector<Frame> unpack() &&;

 private:
  struct Place {
    std::size_t offset;  // in the head; of a payload that follows: its number
    std::size_t size_bytes;
  };

  Buffer head_;
  std::vector<Place> payloads_;  // one a frame
  std::vector<Buffer> awaited_;
};

}  // namespace gradwire::transport
