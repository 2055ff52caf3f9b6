// EngineMetrics are a worker's counters, its notices for people, and its trace.
//
// Threading: any thread. Methods that ask the servers wait for them, at most slow_abort.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kvstore/options.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

struct EngineContext;

class EngineMetrics {
 public:
  explicit EngineMetrics(EngineContext& context) : context_(context) {}

  /// Of the job's own sockets; what the workers of one host say to each other is not in them.
  std::vector<transport::PeerCounters> counters() const;
  DeviceTraffic device_traffic() const;
  PushedBytes pushed() const;
  /// What push() has taken ahead of rounds, of keys and of tables: see push_ahead_bytes.
  std::uint64_t ahead_bytes() const;
  /// Where pushes are applied at once: by staleness (PushClocks::staleness_of), how many parts this worker
  /// has pushed; of a table of rows, a part is what of it lies at one server.
  std::map<std::uint64_t, std::uint64_t> staleness() const;
  /// How often each worker's push was the last that a round of a partition needed; 0 where a library sums.
  /// Asks the servers that are still here. Where workers host them that of a worker that an error has ended
  /// is gone, and its count with it.
  std::vector<std::uint64_t> waited_for() const;
  /// Payload bytes that servers have passed on to their mirrors; 0 without replicas. Asks the servers; what
  /// dead ones had passed on is not counted.
  std::uint64_t mirrored_bytes() const;
  /// Servers that have died, each with the mirror that serves in its place.
  std::map<std::uint32_t, std::uint32_t> replaced_servers() const;
  /// Of the host's threads; of rows also those that call.
  double codec_seconds() const;
  /// Warnings for people since the last call ("waiting 60 s for worker 2 ...").
  std::vector<std::string> take_notices() const;

  /// The trace that the engine was opened with. Throws std::logic_error where there is none.
  Trace& trace() const;
  /// Adds to the trace how far the servers' clocks are from this one's: at its beginning, and at its end,
  /// since they drift. Blocks, at most timeout. No-op without a trace, after close(), and where a library
  /// sums, which has no clock.
  void read_clocks(std::chrono::milliseconds timeout) const;
  /// Writes what has been traced so far, by the server that lives here too, to folder; `store` names the
  /// store to people. Returns the file's path. Also after close(). Throws std::logic_error without a trace,
  /// else as write_trace().
  std::string write_trace(const std::string& folder, const std::string& store) const;

 private:
  EngineContext& context_;
};

/// "3,0,17": numbers as workers and servers say them.
std::vector<std::uint64_t> read_numbers(std::string_view text);

}  // namespace gradwire::kvstore
