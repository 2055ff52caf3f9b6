// MpiLink carries frames between ranks over an MpiApi: it packs and unpacks packets, and keeps the order of
// each peer.
//
// Threading: the I/O thread only.
// Lifetime: the port outlives the link. Payloads are released when MPI has sent them, or by
// MpiApi::abandon().
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "transport/mpi/mpi_api.h"
#include "transport/mpi/mpi_packet.h"

namespace gradwire::transport {

class MpiLink {
 public:
  /// Takes the frames of one packet. Packets of one rank come in the order in which they were sent.
  using Take = std::function<void(std::uint32_t rank, std::vector<Frame> frames)>;
  using Sent = std::function<void()>;
  /// When a packet counts as sent: once its memory is free again, or once its head has come to its receiver.
  enum class Confirm : std::uint8_t { kNo, kHead };

  /// Payloads of more than largest_message_bytes go in several messages; all ranks must use the same.
  MpiLink(MpiApi& port, std::size_t largest_message_bytes, Take take);
  MpiLink(const MpiLink&) = delete;
  MpiLink& operator=(const MpiLink&) = delete;

  void send(std::uint32_t rank, MpiPacket packet, Confirm confirm, Sent sent);
  /// Begins to receive what has come, up to a batch. Returns how many packets that were.
  std::size_t receive();

 private:
  struct Arrival {
    Buffer head;
    bool head_is_here = false;
    std::optional<ArrivingParcel> packet;
    std::size_t awaited_messages = 0;
  };

  using ArrivalPointer = std::shared_ptr<Arrival>;  // owners: this and the operations that write into it

  template <typename Piece>
  void for_each_piece(std::size_t size_bytes, const Piece& piece) const;
  void receive_payloads(std::uint32_t rank, const ArrivalPointer& arrival);
  void advance(std::uint32_t rank);
  void take_arrived(std::uint32_t rank);

  MpiApi& port_;
  const std::size_t largest_message_bytes_;
  const Take take_;
  BufferPool pool_;
  std::vector<std::deque<ArrivalPointer>> arrivals_;  // by rank, oldest first
};

}  // namespace gradwire::transport
