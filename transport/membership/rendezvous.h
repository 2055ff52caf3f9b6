// Rendezvous knows which nodes have come to a job so far, which ranks they get, and which are still missing.
//
// Threading: none of its own; one thread at a time. Pure: no clock, no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/membership/control.h"
#include "transport/messenger.h"

namespace gradwire::transport {

class Rendezvous {
 public:
  struct Member {
    std::string peer;  ///< what the scheduler's socket calls its connection
    Node node;
    Hello hello;
  };

  /// With servers_optional, workers that host servers of their own may come instead of using those; the
  /// servers are spare then.
  Rendezvous(std::uint32_t workers, std::uint32_t servers, bool servers_optional = false,
             std::uint32_t replicas = 0, OnFailure on_failure = OnFailure::kAbort)
      : workers_(workers),
        servers_(servers),
        replicas_(replicas),
        servers_optional_(servers_optional || servers == 0),
        on_failure_(on_failure) {}

  /// Takes a node's hello; one that repeats itself changes nothing. Returns why the node is refused, or
  /// nothing.
  std::optional<std::string> take(const std::string& peer, const Hello& hello);
  /// Drops a node that went away before the job began.
  void forget(const std::string& peer);

  bool is_complete() const { return missing().empty(); }
  /// The members with their ranks: wanted ones as wanted, the others by arrival; a server that a worker's
  /// process hosts gets that worker's, and is left out until the worker is here. Ranks are final once
  /// complete.
  std::vector<Member> members() const;
  std::vector<Node> missing() const;
  /// Servers in the job: as many as it was made with or one for each pair.
  std::uint32_t servers() const { return pairs_ ? workers_ : servers_; }
  bool has_pairs() const { return pairs_; }
  /// Whether a node is a server that nobody will use. It may wait, but is no member.
  bool is_spare(const Hello& hello) const { return pairs_ && is_dedicated(hello); }
  /// "server 1, worker 0 and worker 3 (2 of 5 nodes are here)"
  std::string awaited() const;

 private:
  static bool is_dedicated(const Hello& hello) { return hello.role == Role::kServer && hello.pair.empty(); }
  std::uint32_t size_of(Role role) const { return role == Role::kServer ? servers() : workers_; }
  std::optional<std::string> mixture(const Hello& hello) const;
  std::optional<std::string> objection(const Hello& hello) const;
  std::optional<std::uint32_t> rank_of_pair(const std::string& pair,
                                            const std::vector<Member>& members) const;

  const std::uint32_t workers_;
  const std::uint32_t servers_;
  const std::uint32_t replicas_;
  const bool servers_optional_;
  const OnFailure on_failure_;
  bool pairs_ = false;  // a worker that hosts a server is here
  struct Arrival {
    std::string peer;
    Hello hello;
  };
  std::vector<Arrival> arrivals_;
};

/// "worker 1 (host, pid 123)"; of a server that a worker's process hosts, the worker's name
std::string describe(Node node, const Hello& hello);

/// "host, pid 123"
std::string host_and_pid(const Hello& hello);

}  // namespace gradwire::transport
