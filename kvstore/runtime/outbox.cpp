#include "kvstore/runtime/outbox.h"

#include <algorithm>
#include <utility>

#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using transport::Kind;

namespace {

/// Whether a frame is of a round, and not of what else goes the same way, as a pull's answer.
bool is_of_round(const transport::FrameHeader& header) {
  const bool is_of_its_kind =
      header.kind == Kind::kPush || header.kind == Kind::kReply || header.kind == Kind::kValue;
  return is_of_its_kind && header.step <= kMaxSteps;
}

/// A message arrives whole. One that held several large frames would keep the first from being summed until
/// the last has crossed the wire.
constexpr std::uint64_t kFullMessageBytes = 16U << 10;

/// Whether a frame is queued once: one that goes alone.
bool is_large(const Frame& frame) { return frame.payload.size_bytes() >= kFullMessageBytes; }

/// A name that two pieces share would only let others' patience end early.
std::uint64_t piece_of(const transport::FrameHeader& header) {
  constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15;  // 2^64 / the golden ratio
  return (header.key * kSpread + header.offset) * kSpread + static_cast<std::uint64_t>(header.kind);
}

}  // namespace

Outbox::Outbox(transport::Messenger& messenger, std::shared_ptr<Loop> loop, transport::Role role,
               std::uint32_t peers, std::uint32_t first, Limits limits, Tracer tracer)
    : messenger_(messenger),
      loop_(std::move(loop)),
      role_(role),
      // A server's outbox sends answers only, so it has no windows to look at.
      pushed_to_(role == transport::Role::kServer ? peers : 0),
      local_peer_(messenger.local_peer()),
      limits_{limits.credit_bytes, std::min(limits.fusion_bytes, kFullMessageBytes)},
      queue_(std::make_shared<fusion::SendQueue>(peers, limits.credit_bytes)),
      window_(peers),
      tracer_(std::move(tracer)) {
  queue_->start_at(first % peers);
}

void Outbox::add(std::uint32_t rank, Frame frame) {
  if (local_peer_ == transport::Node{role_, rank})
    return local_.push_back({std::move(frame), tracer_.now(), rank});
  if (is_large(frame) && holds(rank, frame.header, frame.payload.size_bytes())) return;
  const std::uint64_t id = next_id_++;
  if (is_large(frame)) large_.emplace(piece_of(frame.header), id);
  queue_->push({id, frame.header.priority, rank, transport::kHeaderBytes + frame.payload.size_bytes(),
                piece_of(frame.header), frame.header.kind == Kind::kPush});
  frames_.emplace(id, Waiting{std::move(frame), tracer_.now(), rank});
}

bool Outbox::holds(std::uint32_t rank, const transport::FrameHeader& header,
                   std::size_t payload_bytes) const {
  const auto [first, last] = large_.equal_range(piece_of(header));
  return std::any_of(first, last, [&](const auto& entry) {
    const Waiting& waiting = frames_.at(entry.second);
    return waiting.rank == rank && waiting.frame.payload.size_bytes() == payload_bytes &&
           waiting.frame.header == header;
  });
}

void Outbox::forget_large(std::uint64_t id, const Frame& frame) {
  if (!is_large(frame)) return;
  const auto [first, last] = large_.equal_range(piece_of(frame.header));
  const auto noted = std::find_if(first, last, [id](const auto& entry) { return entry.second == id; });
  if (noted != last) large_.erase(noted);
}

Span Outbox::leave_queue(std::uint32_t rank, const Waiting& waiting) const {
  const transport::FrameHeader& header = waiting.frame.header;
  Span span;
  if (!tracer_.is_on() || !is_of_round(header)) return span;
  const bool is_reply = role_ == transport::Role::kWorker;
  span.begin = waiting.since;
  span.end = TraceClock::now();
  span.key = header.key;
  span.offset = header.offset;
  span.bytes = waiting.frame.payload.size_bytes();
  span.step = header.step;
  span.priority = header.priority;
  span.peer = rank;
  span.stage = is_reply ? Stage::kReplyQueue : Stage::kQueue;
  tracer_.add(span);
  span.begin = span.end;
  span.stage = is_reply ? Stage::kReplySend : Stage::kSend;
  return span;
}

// Credit comes back when the socket has written the payload. What holds no payload occupies nothing for long.
Frame Outbox::metered(std::uint32_t rank, Frame frame, const Span& send) {
  const std::uint64_t bytes = transport::kHeaderBytes + frame.payload.size_bytes();
  if (frame.payload.size_bytes() == 0) {
    queue_->release(rank, bytes);
    return frame;
  }
  const std::span<const std::byte> view = std::as_const(frame.payload).bytes();
  // The seal does not pass through borrow(), and computing it again would read every byte.
  const auto checksum = frame.payload.checksum();
  auto kept = std::make_shared<Buffer>(std::move(frame.payload));  // owner: the release closure
  // The socket may keep this longer than the Outbox lives, so it holds the loop, and the queue only weakly.
  auto release = [kept = std::move(kept), loop = loop_, weak = std::weak_ptr(queue_), rank, bytes] {
    // Before what waits there: a link whose credit is back must not stand idle while others' work is done.
    loop->post_first([weak, rank, bytes] {
      if (const auto queue = weak.lock()) queue->release(rank, bytes);
    });
  };
  if (send.begin == TraceClock::time_point()) {
    frame.payload = Buffer::borrow(view, std::move(release));
  } else {
    frame.payload =
        Buffer::borrow(view, [release = std::move(release), tracer = tracer_, sent = send]() mutable {
          sent.end = TraceClock::now();
          tracer.add(sent);
          release();
        });
  }
  if (checksum) frame.payload.seal(*checksum);
  return frame;
}

void Outbox::send_local() {
  std::vector<Frame> frames;
  for (Waiting& waiting : local_) {
    const Span send = leave_queue(local_peer_->rank, waiting);
    if (send.begin != TraceClock::time_point()) tracer_.add(send);  // there is no wire
    frames.push_back(std::move(waiting.frame));
  }
  local_.clear();
  messenger_.send(*local_peer_, std::move(frames));
}

void Outbox::send(std::uint32_t rank, std::vector<Frame> frames) {
  const auto mirror = mirrors_.find(rank);
  if (mirror == mirrors_.end()) return messenger_.send({role_, rank}, std::move(frames));
  // A mirror has partitions of its own beside those that it serves for the other. This says which of them are
  // meant.
  for (Frame& frame : frames) frame.header.on_behalf = transport::Node{role_, rank};
  messenger_.send({role_, mirror->second}, std::move(frames));
}

void Outbox::answered(std::uint32_t rank, std::size_t payload_bytes, Time now) {
  // Pushes to a server in this process were never counted: they use no link that others share.
  if (local_peer_ != transport::Node{role_, rank})
    window_.answered(rank, transport::kHeaderBytes + payload_bytes, now);
}

void Outbox::sends_again(std::uint32_t rank, std::size_t payload_bytes) {
  window_.lost(rank, transport::kHeaderBytes + payload_bytes);
}

void Outbox::all_answered() {
  for (std::uint32_t rank = 0; rank < pushed_to_; ++rank) window_.forget(rank);
}

void Outbox::replace(std::uint32_t rank, std::uint32_t mirror) {
  mirrors_[rank] = mirror;
  window_.forget(rank);
}

void Outbox::hold_or_let_go(std::uint32_t rank, Time now) {
  queue_->hold(rank, window_.closed_until(rank, now).has_value());
}

std::optional<Outbox::Time> Outbox::flush(Time now) {
  if (!local_.empty()) send_local();
  for (std::uint32_t rank = 0; rank < pushed_to_; ++rank) hold_or_let_go(rank, now);
  std::unordered_map<std::uint32_t, std::pair<std::uint64_t, std::vector<Frame>>> fused;
  const auto send_fused = [&](std::uint32_t rank) {
    auto& [bytes, frames] = fused[rank];
    if (!frames.empty()) send(rank, std::exchange(frames, std::vector<Frame>()));
    bytes = 0;
  };
  while (const auto item = queue_->pop()) {
    auto node = frames_.extract(item->id);
    forget_large(item->id, node.mapped().frame);
    auto& [bytes, frames] = fused[item->destination];
    const Span traced = leave_queue(item->destination, node.mapped());
    if (node.mapped().frame.header.kind == Kind::kPush) {
      window_.sent(item->destination, item->bytes, now);
      // Each push may close the window, so this is asked before the queue gives the next one.
      hold_or_let_go(item->destination, now);
    }
    frames.push_back(metered(item->destination, std::move(node.mapped().frame), traced));
    bytes += item->bytes;
    if (bytes >= limits_.fusion_bytes) send_fused(item->destination);
  }
  for (auto& [rank, pending] : fused) send_fused(rank);
  // Only a closed window opens by time alone. Credit and answers come as tasks, which are followed by a
  // flush.
  std::optional<Time> again;
  for (std::uint32_t rank = 0; rank < pushed_to_ && !queue_->empty(); ++rank) {
    const auto until = window_.closed_until(rank, now);
    if (until && (!again || *until < *again)) again = until;
  }
  return again;
}

}  // namespace gradwire::kvstore
