// PushClocks counts each worker's applied pushes of a weight where every push is a round of its own
// (wire/async_policy.h).
//
// With a staleness bound s, a worker that is more than s pushes ahead of the slowest gets its answer when
// that one has caught up. Every weight has a clock, because workers push each weight by itself. A weight
// here is a partition, because a server changes a partition as a whole.
//
// Threading: one owner. Pure: no frame, no time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvstore/aggregate/arrival_set.h"
#include "kvstore/wire/async_policy.h"

namespace gradwire::kvstore {

/// The workers' clocks of one weight. Ranks are those of the job, below `workers`.
class PushClocks {
 public:
  /// All workers' clocks begin at first_step: 0, or where a checkpoint was saved.
  PushClocks(std::uint32_t workers, AsyncPolicy policy, std::uint64_t first_step = 0)
      : policy_(policy), workers_(workers, Worker{.next_step = first_step}) {}

  /// The worker's clock: the step of its next push. A worker that has not pushed yet may begin with a later
  /// one.
  std::uint64_t next_step_of(std::uint32_t worker) const { return workers_[worker].next_step; }
  bool has_pushed(std::uint32_t worker) const { return workers_[worker].pushes > 0; }
  /// Whether any worker has.
  bool has_begun() const { return total_ > 0; }
  /// Counts the push of a step that goes in now.
  void count(std::uint32_t worker, std::uint64_t step);
  /// Notes that worker is given the weight as it is now.
  void show(std::uint32_t worker);
  /// The staleness of the worker's last push: how many pushes of others were applied since it got the weight
  /// (0 before its first push).
  std::uint64_t staleness_of(std::uint32_t worker) const { return workers_[worker].staleness; }
  /// The workers that are more than the bound behind this one, which waits for them; none: it goes on.
  std::vector<std::uint32_t> awaited_by(std::uint32_t worker) const;

 private:
  struct Worker {
    std::uint64_t next_step = 0;
    std::uint64_t pushes = 0;        ///< that went in
    std::uint64_t others_shown = 0;  ///< pushes of others in the weight that it was given last
    std::uint64_t staleness = 0;
  };
  std::uint64_t others_than(const Worker& worker) const { return total_ - worker.pushes; }

  AsyncPolicy policy_;
  std::vector<Worker> workers_;  ///< by rank
  std::uint64_t total_ = 0;      ///< pushes of all
};

/// A server's workers, as the clocks of all its weights need to know them. Ranks are those of the job.
class AsyncWorkers {
 public:
  explicit AsyncWorkers(std::uint32_t workers) : is_gone_(workers), meeting_(workers, "meet") {}

  void set_policy(const AsyncPolicy& policy) { policy_ = policy; }
  /// Whether pushes are applied at once; else a round is all workers' pushes.
  bool has_policy() const { return policy_.has_value(); }
  /// A weight's clocks, which begin at first_step if it has none yet. Requires has_policy().
  PushClocks& clocks_of(std::optional<PushClocks>& weights_own, std::uint64_t first_step) const;
  /// The workers that hold this one back. Workers that are gone do not. Neither do workers in a collective,
  /// because they cannot push before all others are there, too, this worker among them.
  std::vector<std::uint32_t> awaited_by(std::uint32_t worker, const PushClocks& clocks) const;
  /// Notes that worker is in a collective; when all are, all are back. Throws as ArrivalSet::come().
  void meet(std::uint32_t worker) { meeting_.come(worker); }
  /// Notes that the collective has failed for worker, which pushes again: others wait for it as before.
  void come_back(std::uint32_t worker) { meeting_.go_back(worker); }
  /// Notes that worker will push no more.
  void forget(std::uint32_t worker) { is_gone_[worker] = true; }

 private:
  std::optional<AsyncPolicy> policy_;
  std::vector<bool> is_gone_;  ///< by rank
  ArrivalSet meeting_;
};

}  // namespace gradwire::kvstore
