// WaitGraph finds workers that wait for one another: one in a barrier, say, and one in a round that lacks the
// other's push. Whoever coordinates a job keeps one (the scheduler over ZeroMQ, rank 0 over MPI).
//
// A worker reports while all its threads wait. A wait needs every other worker in the same exchange, or to
// have begun the same round, which is a word to us; whether a worker has, it is asked. What it says of itself
// is of one moment, in which it waits, so it stays true until it goes on; and it goes on only when what it
// needs has come. So workers of which each needs something that another of them has not begun wait for ever,
// however late a report comes, and nothing that is still under way is taken for lost. But for a thread of
// which nobody knows yet, since it has made no call: so only who has said the same several times counts.
//
// Threading: none of its own; one thread at a time. Pure: no clock, no I/O.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "transport/membership/exchange_table.h"

namespace gradwire::transport {

/// Of the rounds that one wait needs; there may be as many as a model has tensors.
inline constexpr std::size_t kMostNeeds = 16;

/// What one thread of a worker waits in.
struct Wait {
  std::string what;                ///< to people: "pull of round 3 of key 'w'"
  std::vector<std::string> needs;  ///< up to kMostNeeds rounds that every worker must have begun, in words
                                   ///< that are the same on all
  std::optional<std::uint64_t> exchange;  ///< its number: it needs all workers there
  bool operator==(const Wait&) const = default;
};

/// What a worker says of itself. The text is part of the wire format (transport/PROTOCOL.md, 8).
struct WaitReport {
  std::uint64_t calls = 0;               ///< that it has made so far: what it said before any of them is void
  std::vector<Wait> waits{};             ///< of its threads, all of which wait; empty: it goes on
  std::vector<std::string> begun{};      ///< of the rounds that it was asked about
  std::vector<std::string> not_begun{};  ///< likewise
  bool operator==(const WaitReport&) const = default;
};
std::string to_text(const WaitReport& report);
/// Throws FrameError on text that is none.
WaitReport parse_wait_report(std::string_view text);

/// The rounds that a worker is asked about.
std::string wait_question(const std::set<std::string>& rounds);
std::set<std::string> parse_wait_question(std::string_view text);

/// Workers that wait for one another.
struct Deadlock {
  std::vector<std::uint32_t> workers;
  std::string text;  ///< who is in what, for people
};

class WaitGraph {
 public:
  /// So often a worker says the same, once a second, before it counts.
  static constexpr int kTimes = 3;

  /// Returns whether there may be questions or a deadlock now that there were not before.
  bool take(std::uint32_t worker, WaitReport report);
  void forget(std::uint32_t worker) { workers_.erase(worker); }

  /// By worker that waits: what others need and it was not asked yet. Once each.
  std::map<std::uint32_t, std::set<std::string>> take_questions();
  /// No worker: none that is known.
  Deadlock deadlock(const ExchangeTable& exchanges) const;

 private:
  struct Worker {
    WaitReport report;
    int times = 0;  ///< that it has said so
    std::set<std::string> asked, not_begun;

    bool is_in(std::uint64_t exchange) const;
  };
  class Lacking;

  std::map<std::uint32_t, Worker> workers_;  ///< those that wait
};

}  // namespace gradwire::transport
