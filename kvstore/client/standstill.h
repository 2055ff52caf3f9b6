// Standstill reports to the job's coordinator what this worker waits in, once all threads that drive it
// wait. So workers that wait for each other fail at once and not after slow_abort
// (transport/membership/wait_graph.h).
//
// Threading: tick() and ask() on the thread of the job's rounds, watch() and stop() by the Engine, once
// each.
// Lifetime: the messenger outlives it; what watch() gets lives until stop().
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "kvstore/runtime/callers.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

class RoundThread;
class SparseRows;

class Standstill {
 public:
  Standstill(transport::Messenger& messenger, std::shared_ptr<Callers> callers)
      : messenger_(messenger), callers_(std::move(callers)) {}

  /// rows: tables, or null where there are none.
  void watch(RoundThread& rounds, const SparseRows* rows);
  void stop();

  void tick();
  /// Answers which of these rounds this worker has begun.
  void ask(const std::set<std::string>& rounds);

 private:
  using Clock = std::chrono::steady_clock;

  void report(const std::set<std::string>& asked);

  transport::Messenger& messenger_;
  const std::shared_ptr<Callers> callers_;  // owners: the Engine, this and tickets
  std::mutex mutex_;                        // guards what watch() has given
  RoundThread* rounds_ = nullptr;
  const SparseRows* rows_ = nullptr;
  // Of tick().
  std::optional<std::uint64_t> since_calls_;  ///< the standstill that is under way
  Clock::time_point since_, reported_;
  bool has_reported_ = false;
};

}  // namespace gradwire::kvstore
