// SchedulerSender makes the frames that a scheduler sends, each with the epoch of the job's generation. Among
// them are notices, which every node of a generation must get once and in order. A notice is sent again until
// a heartbeat of the node counts it, since its connection may be down for a moment.
//
// Threading: the scheduler's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "transport/membership/control.h"
#include "transport/zmq/scheduler_peers.h"

namespace gradwire::transport {

Buffer to_buffer(std::string text);

class SchedulerSender {
 public:
  /// Sends one frame to a peer. A peer that has gone is liveness's to name.
  using Send = std::function<void(const std::string& peer, Frame frame)>;

  explicit SchedulerSender(Send send) : send_(std::move(send)) {}

  /// From here on frames of the generation before, still on their way, are nobody's, and so are its notices.
  void begin_generation();
  /// 0 before the first generation.
  std::uint64_t epoch() const { return epoch_; }

  void send(const std::string& peer, Kind kind, std::uint64_t key = 0, std::uint64_t step = 0,
            Buffer payload = {}) const;
  void send_failure(const std::string& peer, FailureCause cause, std::string text) const;
  void acknowledge_goodbye(const std::string& peer) const;

  /// Adds a notice and sends it to all peers that hear notices.
  void announce(const SchedulerPeers& peers, Kind kind, std::uint64_t key, std::string text);
  /// Sends all notices but the first `heard`.
  void send_notices(const std::string& peer, std::size_t heard) const;

 private:
  struct Notice {
    Kind kind;
    std::uint64_t key;
    Buffer text;
  };

  Send send_;
  std::uint64_t epoch_ = 0;
  std::vector<Notice> notices_;  ///< of this generation
};

}  // namespace gradwire::transport
