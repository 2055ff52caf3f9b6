// Replication: a server forwards every request to another one, its mirror, in the order in which it takes
// them. Aggregator, RowAggregator and BlobStore are deterministic. So a mirror that gets the same requests
// has the same state, to the bit. A reply leaves only after the mirror has the request, so no acknowledged
// update is lost. Each server receives goodbyes itself: they change which workers are awaited, and what
// waiting workers get, but no sum and no weight.
//
// Each of a server's threads has a log of its own. Requests are numbered from 1 and may be lost, damaged or
// duplicated. The mirror accepts only the next number and says which one it wants next (kMirrored). The
// server repeats what the mirror has not acknowledged.
//
// Threading: one owner each. Pure: the caller passes the time.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "kvstore/wire/answer.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

/// A request's place, as in a header's `number`. Part of the wire format: from the lowest bit on 48 bits, 8
/// and 8.
struct MirrorNumber {
  std::uint64_t place = 0;  ///< in its log, from 1
  std::uint8_t log = 0;     ///< which of a server's threads
  std::uint8_t logs = 1;    ///< how many those are
};
std::uint64_t pack(const MirrorNumber& number);
MirrorNumber unpack(std::uint64_t number);
/// The most threads that a mirrored server may have.
inline constexpr unsigned kMaxMirrorLogs = 255;

/// The requests of one log, and the answers that wait for them: the end that passes on.
class MirrorLog {
 public:
  using Clock = std::chrono::steady_clock;

  MirrorLog(std::uint8_t log, std::uint8_t logs) : log_(log), logs_(logs) {}

  /// Numbers a worker's request; returns what is to be sent to the mirror. The payload is shared.
  transport::Frame forward(std::uint32_t worker, const transport::Frame& request, Clock::time_point now);
  /// Keeps answers to what was passed on so far until the mirror has it.
  void hold(std::vector<Answer> answers);
  /// Notes that the mirror has all requests below `next`. Returns what is to be sent again at once: where it
  /// says so for the second time, what came since was not what it wants, so that was lost or is late.
  std::vector<transport::Frame> acknowledge(std::uint64_t next, Clock::time_point now);
  /// Waits for nothing any more: the mirror has gone.
  void forgo();
  /// Takes the answers that may leave, in the order in which they were held.
  std::vector<Answer> release();
  /// Returns what is to be sent again: all that waits, where nothing was acknowledged for so long; twice as
  /// long each time that nothing came of it, up to 16 times.
  std::vector<transport::Frame> overdue(Clock::time_point now, std::chrono::milliseconds patience);

  /// For how long the mirror has acknowledged nothing of what it was sent; 0 where it has all.
  Clock::duration waited(Clock::time_point now) const;

  /// Whether no answer waits.
  bool empty() const { return held_.empty(); }

 private:
  std::uint8_t log_, logs_;
  std::uint64_t next_ = 1;
  std::uint64_t acknowledged_ = 1;  ///< the mirror wants this one next
  std::deque<transport::Frame> unacknowledged_;
  std::deque<std::pair<std::uint64_t, Answer>> held_;  ///< with the number that they wait for
  Clock::time_point progressed_{};  ///< it acknowledged something, or was sent something while it had all
  Clock::time_point sent_again_{};
  unsigned times_in_vain_ = 0;     ///< that it was, since then
  std::uint64_t asked_again_ = 0;  ///< what the mirror wanted when it last said so twice
  std::vector<transport::Frame> all_again(Clock::time_point now);
};

/// The end that is passed on to, of one log.
class MirrorIntake {
 public:
  /// Whether this is the request that comes next, and whole. It is then as it came from the worker.
  bool take(transport::Frame& request);
  /// The number that it wants next.
  std::uint64_t next() const { return next_; }

 private:
  std::uint64_t next_ = 1;
};

/// What a mirror says of a log: all requests before that place are here.
transport::Frame mirrored(const MirrorNumber& next);

}  // namespace gradwire::kvstore
