// Outbox sends frames by priority and within credit, and fuses small ones that go to the same peer. Engine
// uses one for its pushes, each Server thread one for its replies. Pushes stay in step with those of other
// workers (push_window.h). Frames to a peer in the same process use no wire and wait for nothing.
//
// Threading: used inside one Loop; only the release of a sent payload comes from elsewhere, as a posted
// task.
// Lifetime: payloads may be released after the Outbox is gone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "fusion/push_window.h"
#include "fusion/send_queue.h"
#include "kvstore/runtime/loop.h"
#include "kvstore/trace/trace.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

class Outbox {
 public:
  using Time = fusion::PushWindow::Time;
  struct Limits {
    std::uint64_t credit_bytes;  ///< handed to the socket and not yet written by it, per peer
    std::uint64_t fusion_bytes;  ///< frames to one peer are fused until a message holds this much, or 16 KiB
  };
  /// Peers are role's ranks 0 .. peers-1; first is the one favoured first.
  Outbox(transport::Messenger& messenger, std::shared_ptr<Loop> loop, transport::Role role,
         std::uint32_t peers, std::uint32_t first, Limits limits, Tracer tracer = {});

  /// Queues a frame to peer `rank`; header.priority orders it. One with much payload that waits here already
  /// is not queued again: on a slow link a request is repeated before its first copy has left.
  void add(std::uint32_t rank, transport::Frame frame);
  /// Whether such a frame waits here: with this header, and as much payload.
  bool holds(std::uint32_t rank, const transport::FrameHeader& header, std::size_t payload_bytes) const;
  /// From now on what goes to peer `rank`, also what waits, is sent to peer `mirror`, on the other's behalf.
  void replace(std::uint32_t rank, std::uint32_t mirror);
  /// Sends what credit allows, to servers also what the window does. Returns when to call this again, where
  /// time alone may allow more.
  std::optional<Time> flush(Time now);
  /// A push of a frame with so many bytes of payload has its answer.
  void answered(std::uint32_t rank, std::size_t payload_bytes, Time now);
  /// Such a push is about to be sent again.
  void sends_again(std::uint32_t rank, std::size_t payload_bytes);
  /// No push waits for an answer.
  void all_answered();
  /// Of pushes to a peer that were sent.
  std::uint64_t unanswered_bytes(std::uint32_t rank) const { return window_.unanswered_bytes(rank); }
  /// Whether all has been handed to the Messenger.
  bool empty() const { return frames_.empty() && local_.empty(); }

 private:
  /// A frame, and since when it has been here: the epoch while nothing is traced.
  struct Waiting {
    transport::Frame frame;
    TraceClock::time_point since;
    std::uint32_t rank = 0;  ///< of the peer
  };
  /// What is noted of a frame that has left the queue: its send's span, to be ended.
  Span leave_queue(std::uint32_t rank, const Waiting& waiting) const;
  /// A frame is about to leave the queue.
  void forget_large(std::uint64_t id, const transport::Frame& frame);
  void send_local();
  /// Holds what goes to a peer whose window is closed.
  void hold_or_let_go(std::uint32_t rank, Time now);
  void send(std::uint32_t rank, std::vector<transport::Frame> frames);
  transport::Frame metered(std::uint32_t rank, transport::Frame frame, const Span& send);

  transport::Messenger& messenger_;
  std::shared_ptr<Loop> loop_;  // owners: the Outbox's owner and payloads still in the socket
  transport::Role role_;
  std::uint32_t pushed_to_;  // peers: none of a server's
  std::optional<transport::Node> local_peer_;
  Limits limits_;
  std::shared_ptr<fusion::SendQueue> queue_;  // owners: this; release tasks hold it weakly
  fusion::PushWindow window_;                 // of pushes to servers
  Tracer tracer_;
  std::unordered_map<std::uint32_t, std::uint32_t> mirrors_;  ///< of peers that are replaced
  std::unordered_map<std::uint64_t, Waiting> frames_;
  std::unordered_multimap<std::uint64_t, std::uint64_t> large_;  ///< of those in frames_, by piece
  std::vector<Waiting> local_;
  std::uint64_t next_id_ = 0;
};

}  // namespace gradwire::kvstore
