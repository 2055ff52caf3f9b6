// Traffic counts frames and bytes per peer.
//
// Threading: every method from any thread.
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::transport {

/// Header and payload bytes of frames that travel together.
inline std::uint64_t total_bytes(std::span<const Frame> frames) {
  std::uint64_t bytes = 0;
  for (const Frame& frame : frames) bytes += kHeaderBytes + frame.payload.size_bytes();
  return bytes;
}

class Traffic {
 public:
  void sent(Node peer, std::uint64_t bytes, std::uint64_t frames) {
    const std::lock_guard lock(mutex_);
    Counters& counters = peers_[peer];
    counters.bytes_sent += bytes;
    counters.frames_sent += frames;
  }

  void received(Node peer, std::uint64_t bytes, std::uint64_t frames) {
    const std::lock_guard lock(mutex_);
    Counters& counters = peers_[peer];
    counters.bytes_received += bytes;
    counters.frames_received += frames;
  }

  std::vector<PeerCounters> snapshot() const {
    const std::lock_guard lock(mutex_);
    std::vector<PeerCounters> all;
    for (const auto& [peer, counters] : peers_) all.push_back({peer, counters});
    return all;
  }

 private:
  mutable std::mutex mutex_;
  std::map<Node, Counters> peers_;
};

}  // namespace gradwire::transport
