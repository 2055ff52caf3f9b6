// WaitGraph finds workers that wait for each other: one in a barrier, say, and one in a round that lacks the
// other's push. The coordinator of a job has one (the scheduler over ZeroMQ, rank 0 over MPI).
//
// A worker reports while all its threads wait. A wait needs every other worker in the same exchange, or
// needs every other worker to have begun the same round. Rounds are only words here, so each worker is asked
// whether it has begun one.
//
// Why it finds no false deadlock: a report describes one moment, in which the worker waits. It stays true
// until the worker continues, and the worker continues only when what it needs has come. So workers that
// each need something that another of them has not begun wait for ever, however late their reports are.
// Frames in flight are never taken for lost. One thread may be unknown yet, because it has made no call. So
// a report counts only when the worker has repeated it.
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

/// A worker's report. The text is part of the wire format (transport/PROTOCOL.md, 8).
struct WaitReport {
  std::uint64_t calls = 0;               ///< that it has made so far: what it said before any of them is void
  std::vector<Wait> waits{};             ///< of its threads, all of which wait; empty: it goes on
  std::vector<std::string> begun{};      ///< of the rounds that it was asked about
  std::vector<std::string> not_begun{};  ///< of the rounds that it was asked about
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
  std::string text;  ///< what each of them waits in, for people
};

class WaitGraph {
 public:
  /// How many times a worker must send the same report, once a second, before it counts.
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
