// Regroup is the rendezvous of a job's next generation: which members of the last one are awaited, which are
// back, and which are new. Newcomers may come before it is open, and wait.
//
// Threading: none of its own; one thread at a time. Pure: the caller passes the time; no I/O.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/membership/control.h"
#include "transport/membership/rendezvous.h"

namespace gradwire::transport {

class Regroup {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Limits {
    std::uint32_t min_workers = 1;
    /// How long a member that gives no sign of life is awaited, and newcomers where there are too few.
    std::chrono::milliseconds silence{30'000};
    /// How long one that lives, and does not come, is awaited.
    std::chrono::milliseconds patience{1'800'000};
  };

  enum class Verdict : std::uint8_t {
    kWaiting,
    kComplete,  ///< members() are the next generation
    kFailed,    ///< there will be none: fault() says why
  };

  /// Of a job whose workers host servers of their own (pairs), or have these; settings: what its workers have
  /// alike (Hello::settings).
  Regroup(Limits limits, bool pairs, std::uint32_t servers, std::vector<std::string> settings = {})
      : limits_(limits), pairs_(pairs), servers_(servers), settings_(std::move(settings)) {}

  /// Awaits a member of the last generation, that was this node there, from now on.
  void expect(const std::string& member, Node former, Time now);
  /// From here on judge() decides. Requires that all awaited members were expected.
  void open(Time now) { opened_ = now; }
  /// Notes a sign of life of a member that is not back yet.
  void heard(const std::string& member, Time now);
  /// Awaits a member no longer: it is dead, or has left the job.
  void drop(const std::string& member) { awaited_.erase(member); }

  /// Takes a node's hello; one that repeats itself changes nothing. Returns why the node is refused, or
  /// nothing.
  std::optional<std::string> take(const std::string& peer, const Hello& hello);
  /// Drops a connection that has ended: a member that had come back on it is dead.
  void forget(const std::string& peer);

  /// Workers that are no members, each with the server that it hosts, if workers do.
  std::uint32_t newcomers() const;

  /// Workers of the last generation that are back.
  std::uint32_t back() const { return static_cast<std::uint32_t>(workers_back().size()); }

  Verdict judge(Time now);
  /// "worker 1 (1 of 3 workers are back)"
  std::string awaited() const;
  const std::string& fault() const { return fault_; }
  /// Members with their new ranks: workers that were there in the order of their ranks, then newcomers by
  /// arrival; servers keep their ranks, or have those of the workers that host them.
  std::vector<Rendezvous::Member> members() const;

 private:
  struct Awaited {
    Node former;
    Time sign_of_life;
  };
  struct Arrival {
    std::string peer;
    Hello hello;
  };

  const Arrival* find(const std::string& member) const;
  const Arrival* server_of(const Hello& worker) const;
  bool is_whole(const Hello& worker) const { return !pairs_ || server_of(worker) != nullptr; }
  std::vector<const Arrival*> workers_back() const;
  std::vector<const Arrival*> workers_new() const;
  std::vector<std::pair<std::string, Awaited>> absent() const;
  std::optional<std::string> objection(const Hello& hello) const;
  std::optional<std::string> difference(const Hello& worker) const;
  Verdict fail(std::string why);

  const Limits limits_;
  const bool pairs_;
  const std::uint32_t servers_;
  const std::vector<std::string> settings_;
  std::map<std::string, Awaited> awaited_;  // by member's name
  std::vector<Arrival> arrivals_;
  Time opened_;
  std::string fault_;
};

}  // namespace gradwire::transport
