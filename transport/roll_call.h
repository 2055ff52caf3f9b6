// RollCall is who has come to a job so far, which ranks they get, and whom it still waits for.
//
// Threading: none of its own; one thread at a time. Pure: no clock, no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/control.h"

namespace gradwire::transport {

class RollCall {
 public:
  struct Member {
    std::string peer;  ///< what the scheduler's socket calls its connection
    Node node;
    Hello hello;
  };

  RollCall(std::uint32_t workers, std::uint32_t servers) : workers_(workers), servers_(servers) {}

  /// Takes a node's hello; one that repeats itself changes nothing. Returns why the node is refused, or
  /// nothing.
  std::optional<std::string> take(const std::string& peer, const Hello& hello);
  /// Drops a node that went away before the job began.
  void forget(const std::string& peer);

  bool is_complete() const { return missing().empty(); }
  /// The members with their ranks: wanted ones as wanted, the others by arrival. Ranks are final once
  /// complete.
  std::vector<Member> members() const;
  std::vector<Node> missing() const;
  /// "server 1, worker 0 and worker 3 (2 of 5 nodes are here)"
  std::string awaited() const;

 private:
  std::uint32_t size_of(Role role) const { return role == Role::kServer ? servers_ : workers_; }
  std::optional<std::string> objection(const Hello& hello) const;

  const std::uint32_t workers_;
  const std::uint32_t servers_;
  struct Arrival {
    std::string peer;
    Hello hello;
  };
  std::vector<Arrival> arrivals_;
};

/// "worker 1 (host, pid 123)"
std::string describe(Node node, const Hello& hello);

}  // namespace gradwire::transport
