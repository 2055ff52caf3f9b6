#include "transport/mpi/mpi_link.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace gradwire::transport {
namespace {

constexpr std::size_t kBatch =
    64;  // heads taken at a time, so that payloads and requests are looked after in a flood

struct Sending {
  MpiPacket packet;
  MpiLink::Sent sent;
  std::size_t messages = 0;
};

}  // namespace

MpiLink::MpiLink(MpiApi& port, std::size_t largest_message_bytes, Take take)
    : port_(port),
      largest_message_bytes_(largest_message_bytes),
      take_(std::move(take)),
      arrivals_(port.size()) {}

template <typename Piece>
void MpiLink::for_each_piece(std::size_t size_bytes, const Piece& piece) const {
  for (std::size_t at = 0; at < size_bytes; at += largest_message_bytes_)
    piece(at, std::min(largest_message_bytes_, size_bytes - at));
}

void MpiLink::send(std::uint32_t rank, MpiPacket packet, Confirm confirm, Sent sent) {
  // MPI reads payloads until a send has ended, and nobody else keeps them.
  const auto sending = std::make_shared<Sending>();  // owners: the operations of its messages
  sending->packet = std::move(packet);
  sending->sent = std::move(sent);
  const auto send_one = [&](MpiApi::Tag tag, std::span<const std::byte> bytes) {
    ++sending->messages;  // no Done is called before poll()
    const auto done = [sending] {
      if (--sending->messages == 0 && sending->sent) sending->sent();
    };
    const bool confirmed = tag == MpiApi::Tag::kHead && confirm == Confirm::kHead;
    confirmed ? port_.send_confirmed(rank, tag, bytes, done) : port_.send(rank, tag, bytes, done);
  };
  // First: the receiver learns from it how long the payloads are, and makes room.
  send_one(MpiApi::Tag::kHead, sending->packet.head.bytes());
  for (const Buffer& payload : sending->packet.payloads) {
    for_each_piece(payload.size_bytes(), [&](std::size_t at, std::size_t size_bytes) {
      send_one(MpiApi::Tag::kPayload, payload.bytes().subspan(at, size_bytes));
    });
  }
}

std::size_t MpiLink::receive() {
  std::size_t count = 0;
  for (; count < kBatch; ++count) {
    const auto found = port_.probe();
    if (!found) break;
    const auto arrival = std::make_shared<Arrival>();
    arrival->head = pool_.take(found->size_bytes);
    // Listed before it is received: heads are matched in the order of probes, and may be complete in another.
    arrivals_.at(found->rank).push_back(arrival);
    port_.receive_probed(arrival->head.bytes(), [this, rank = found->rank, arrival] {
      arrival->head_is_here = true;
      advance(rank);
    });
  }
  return count;
}

void MpiLink::receive_payloads(std::uint32_t rank, const ArrivalPointer& arrival) {
  // Payload messages have no length or name of their own: the head has both, by their order.
  arrival->packet.emplace(std::move(arrival->head), pool_);
  for (Buffer& payload : arrival->packet->awaited()) {
    for_each_piece(payload.size_bytes(), [&](std::size_t at, std::size_t size_bytes) {
      ++arrival->awaited_messages;
      port_.receive(rank, MpiApi::Tag::kPayload, payload.bytes().subspan(at, size_bytes),
                    [this, rank, arrival] {
                      --arrival->awaited_messages;
                      advance(rank);
                    });
    });
  }
}

// MPI matches payloads of one rank in the order in which they are awaited: those of the oldest head come
// first.
void MpiLink::advance(std::uint32_t rank) {
  try {
    take_arrived(rank);
  } catch (const FrameError& error) {
    // Not dropped as over ZeroMQ: the payloads of a head that cannot be read would be taken for those of the
    // next.
    throw FrameError("what rank " + std::to_string(rank) + " sent cannot be read: " + error.what());
  }
}

void MpiLink::take_arrived(std::uint32_t rank) {
  std::deque<ArrivalPointer>& arrivals = arrivals_[rank];
  for (const ArrivalPointer& arrival : arrivals) {
    // A later head's payloads must not be awaited before those of this one.
    if (!arrival->head_is_here) break;
    if (!arrival->packet) receive_payloads(rank, arrival);
  }
  // A short packet may be complete before a long one in front of it, and waits: order is kept per rank.
  while (!arrivals.empty() && arrivals.front()->packet && arrivals.front()->awaited_messages == 0) {
    const ArrivalPointer arrival = std::move(arrivals.front());
    arrivals.pop_front();
    take_(rank, std::move(*arrival->packet).unpack());
  }
}

}  // namespace gradwire::transport
