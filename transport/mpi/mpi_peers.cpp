#include "transport/mpi/mpi_peers.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace gradwire::transport {
namespace {

constexpr Node kCoordinator{Role::kScheduler, 0};  // what control frames are counted under
constexpr std::uint32_t kCoordinatorRank = 0;

Buffer to_buffer(std::string_view text) { return Buffer::borrow(std::as_bytes(std::span(text))).copy(); }

}  // namespace

MpiPeers::MpiPeers(MpiApi& port, const MpiOptions& options, std::span<const MpiEntry> entries,
                   Traffic& traffic, Events& events)
    : self_(port.rank()),
      size_(port.size()),
      epoch_(entries.front().epoch),
      traffic_(traffic),
      events_(events),
      link_(port, options.largest_message_bytes,
            [this](std::uint32_t rank, std::vector<Frame> frames) { take(rank, std::move(frames)); }),
      desk_(size_),
      liveness_(options.liveness_timeout),
      next_beat_(std::chrono::steady_clock::now()) {
  for (std::uint32_t rank = 0; rank < size_; ++rank) {
    names_.push_back(describe_rank(entries, rank));
    // From the start: all ranks were at the rendezvous, so one that never sends a frame is dead, too.
    if (is_watched(rank)) liveness_.heard(names_[rank], next_beat_);
    // Erased one by one when the job has failed: what is left may still be sending to this rank.
    if (rank != self_) unaware_.insert(rank);
  }
}

void MpiPeers::send(std::uint32_t rank, MpiPacket packet, MpiLink::Sent sent) {
  link_.send(rank, std::move(packet), MpiLink::Confirm::kNo, std::move(sent));
}

// Those who watch each other also send each other heartbeats.
bool MpiPeers::is_watched(std::uint32_t rank) const {
  return rank != self_ && (self_ == kCoordinatorRank || rank == kCoordinatorRank);
}

FrameHeader MpiPeers::header_of(Kind kind) const {
  FrameHeader header;
  header.kind = kind;
  header.sender = {Role::kWorker, self_};
  header.epoch = epoch_;
  return header;
}

void MpiPeers::send_control(std::uint32_t rank, const FrameHeader& header, std::string_view text,
                            MpiLink::Confirm confirm, MpiLink::Sent sent) {
  std::vector<Frame> frames;
  frames.push_back({header, to_buffer(text)});
  traffic_.sent(kCoordinator, total_bytes(frames), 1);
  link_.send(rank, pack_for_mpi(std::move(frames)), confirm, std::move(sent));
}

void MpiPeers::say_goodbye(Node self, const std::string& error, const MpiLink::Sent& sent) {
  // No other rank will confirm it.
  if (size_ == 1) sent();
  FrameHeader header = header_of(Kind::kGoodbye);
  header.sender = self;
  const auto unconfirmed = std::make_shared<std::uint32_t>(size_ - 1);  // owners: the packets under way
  for (std::uint32_t rank = 0; rank < size_; ++rank) {
    if (rank == self_) continue;
    // A confirmed send ends when the receiver has taken it. MPI keeps the order, so all before it have
    // arrived.
    send_control(rank, header, error_text(error), MpiLink::Confirm::kHead, [unconfirmed, sent] {
      if (--*unconfirmed == 0) sent();
    });
  }
  // Nobody sends rank 0 its own goodbye, and workers may be waiting for it in an exchange.
  note_goodbye(self, error);
}

void MpiPeers::submit_exchange(std::uint64_t sequence, ExchangeAsk ask, std::string_view payload) {
  // The coordinator is a worker like any other, and needs no message to itself.
  if (self_ == kCoordinatorRank) return take_exchange(self_, sequence, ask, payload);
  FrameHeader header = header_of(Kind::kExchange);
  header.key = sequence;
  header.step = static_cast<std::uint64_t>(ask);
  send_control(kCoordinatorRank, header, payload);
}

void MpiPeers::submit_wait(const WaitReport& report) {
  if (failed_) return;
  if (self_ == kCoordinatorRank) return take_wait(self_, report);
  send_control(kCoordinatorRank, header_of(Kind::kWait), to_text(report));
}

// Workers that wait for one another would do so for ever.
void MpiPeers::take_wait(std::uint32_t rank, WaitReport report) {
  // Only a report that changes the picture can complete a deadlock.
  if (!waits_.take(rank, std::move(report))) return;
  for (const auto& [asked, rounds] : waits_.take_questions()) {
    if (asked == self_) {
      events_.on_question(rounds);
    } else {
      send_control(asked, header_of(Kind::kWait), wait_question(rounds));
    }
  }
  const Deadlock found = waits_.deadlock(desk_.exchanges());
  if (!found.workers.empty()) fail(found.text, FailureCause::kCalls);
}

void MpiPeers::spread_failure(const std::string& text, FailureCause cause) {
  // Before the sends: a frame that arrives meanwhile must not start the same again.
  failed_ = true;
  FrameHeader header = header_of(Kind::kFailure);
  header.key = static_cast<std::uint64_t>(cause);
  for (std::uint32_t rank = 0; rank < size_; ++rank) {
    // Also to the rank that is dead, if one is: it may be another that died. What never arrives is given up
    // after a while (MpiEndpoint::settle_failure).
    if (rank != self_) send_control(rank, header, text);
  }
}

void MpiPeers::fail(const std::string& text, FailureCause cause) {
  if (failed_) return;
  // First for this rank: the sends below may throw where MPI itself is broken.
  events_.on_failure(text, cause);
  spread_failure(text, cause);
}

void MpiPeers::tick(Time now) {
  // After a failure nobody is blamed any more: ranks end, and fall silent, in any order.
  if (failed_ || now < next_beat_) return;
  next_beat_ = now + liveness_.beat();
  for (std::uint32_t rank = 0; rank < size_; ++rank) {
    if (is_watched(rank)) send_control(rank, header_of(Kind::kHeartbeat), "");
  }
  if (const auto lost = liveness_.check(now)) {
    const auto rank = std::ranges::find(names_, lost->id) - names_.begin();
    // A dead rank will never say that it knows of the failure.
    unaware_.erase(static_cast<std::uint32_t>(rank));
    fail(lost->id + " " + lost->why);
  }
}

// All frames of a packet are from one node of that rank, and of one plane.
void MpiPeers::take(std::uint32_t rank, std::vector<Frame> frames) {
  if (frames.empty()) return;
  const Node from = frames.front().header.sender;
  const bool is_data = frames.front().header.kind >= Kind::kInit;
  for (const Frame& frame : frames) {
    const FrameHeader& header = frame.header;
    const bool is_of_rank = header.sender == from && from.rank == rank && from.role != Role::kScheduler;
    if (!is_of_rank || header.epoch != epoch_ || (header.kind >= Kind::kInit) != is_data) {
      throw FrameError("frame: kind " + std::to_string(static_cast<int>(header.kind)) + " of " +
                       to_string(header.sender) + " in epoch " + std::to_string(header.epoch) +
                       " from rank " + std::to_string(rank) + "; expected one of its nodes in epoch " +
                       std::to_string(epoch_));
    }
  }
  // Any frame is a sign of life. It counts after the checks, which end the job for a rank that sends
  // nonsense.
  if (is_watched(rank)) liveness_.heard(names_[rank], std::chrono::steady_clock::now());
  // After a failure the inboxes drop them, and MPI has still received them: their sender gets its memory
  // back.
  if (is_data) return events_.on_frames(from, std::move(frames));
  traffic_.received(kCoordinator, total_bytes(frames), frames.size());
  for (const Frame& frame : frames) take_control(rank, frame);
}

void MpiPeers::take_control(std::uint32_t rank, const Frame& frame) {
  const FrameHeader& header = frame.header;
  switch (header.kind) {
    case Kind::kHeartbeat:
      return;
    case Kind::kExchange:
      return take_exchange(rank, header.key, static_cast<ExchangeAsk>(header.step), payload_text(frame));
    case Kind::kExchangeResult:
      return events_.on_exchange_result(header.key, static_cast<ExchangeAnswer>(header.step),
                                        payload_text(frame));
    case Kind::kGoodbye: {
      const std::string error = parse_error(payload_text(frame));
      note_goodbye(header.sender, error);
      return events_.on_goodbye(header.sender, error);
    }
    case Kind::kWait:
      // One kind, two meanings: rank 0 sends questions and gets reports.
      if (self_ != kCoordinatorRank) return events_.on_question(parse_wait_question(payload_text(frame)));
      return take_wait(rank, parse_wait_report(payload_text(frame)));
    case Kind::kFailure:
      return take_failure(rank, payload_text(frame), static_cast<FailureCause>(header.key));
    default:
      throw FrameError("frame: kind " + std::to_string(static_cast<int>(header.kind)) +
                       " does not travel over MPI");
  }
}

void MpiPeers::take_failure(std::uint32_t rank, const std::string& text, FailureCause cause) {
  // It sends no frame after this one. fail() passes the failure on, and does so once.
  unaware_.erase(rank);
  fail(text, cause);
}

void MpiPeers::take_exchange(std::uint32_t rank, std::uint64_t sequence, ExchangeAsk ask,
                             std::string_view payload) {
  if (self_ != kCoordinatorRank) throw FrameError("exchange: rank 0 gathers it, not this one");
  std::optional<ExchangeReply> reply;
  try {
    reply = desk_.take(rank, sequence, ask, payload);
  } catch (const CallMismatch& mismatch) {
    return fail(mismatch.what(), FailureCause::kCalls);
  }
  if (reply) answer(*reply);
}

void MpiPeers::answer(const ExchangeReply& reply) {
  FrameHeader header = header_of(Kind::kExchangeResult);
  header.key = reply.sequence;
  header.step = static_cast<std::uint64_t>(reply.answer);
  for (const std::uint32_t rank : reply.workers) {
    if (rank == self_) {
      events_.on_exchange_result(reply.sequence, reply.answer, reply.payload);
    } else {
      send_control(rank, header, reply.payload);
    }
  }
}

void MpiPeers::note_goodbye(Node peer, const std::string& error) {
  // Servers take no part in exchanges.
  if (self_ != kCoordinatorRank || peer.role != Role::kWorker) return;
  waits_.forget(peer.rank);
  for (const ExchangeReply& reply : desk_.leave(peer.rank, error)) answer(reply);
}

}  // namespace gradwire::transport
