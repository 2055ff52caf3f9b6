// Liveness detects dead nodes among the watched ones: those that are silent for too long, or whose
// connection has closed.
//
// Threading: none of its own; one thread at a time. Pure: the caller passes the time.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

namespace gradwire::transport {

class Liveness {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Lost {
    std::string id;   ///< the caller's: over ZeroMQ a connection's routing id, over MPI the node's name
    std::string why;  ///< "sent no heartbeat for 20.0 s (GRADWIRE_LIVENESS_TIMEOUT is 20.0 s)"
  };

  explicit Liveness(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  /// How often a watched node shows itself, so that a few lost beats are not a death.
  std::chrono::milliseconds beat() const;

  /// Starts watching a node, or notes that it lives.
  void heard(const std::string& id, Time now);
  /// Notes that its connection closed. Unless a frame comes from it soon, it counts as dead before the
  /// timeout.
  void disconnected(const std::string& id, Time now);
  void forget(const std::string& id) { watched_.erase(id); }

  /// Gives one dead node. Call often: a watcher that was itself asleep blames nobody for that time.
  std::optional<Lost> check(Time now);

 private:
  struct Watched {
    Time heard;
    std::optional<Time> disconnected;
  };

  std::chrono::milliseconds return_time() const;

  const std::chrono::milliseconds timeout_;
  std::map<std::string, Watched> watched_;
  std::optional<Time> checked_;
};

}  // namespace gradwire::transport
