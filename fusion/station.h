// Station: threads that take jobs, urgent ones first, as those of CodecPool, in simulated time.
//
// Threading: none of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

namespace gradwire::fusion {

class Station {
 public:
  struct Job {
    std::uint64_t id = 0;
    std::int32_t priority = 0;
    double seconds = 0;
  };

  /// Requires threads >= 1. wakeup_seconds: what a job takes longer if a thread sleeps when it comes.
  Station(unsigned threads, double wakeup_seconds) : wakeup_seconds_(wakeup_seconds), idle_(threads) {}

  void submit(Job job) {
    if (waiting_.size() < idle_) job.seconds += wakeup_seconds_;
    waiting_.emplace(job.priority, job);
  }

  /// Gives the next job to an idle thread, which is busy until end(). None: nothing may begin now.
  std::optional<Job> begin() {
    if (idle_ == 0 || waiting_.empty()) return std::nullopt;
    --idle_;
    const Job job = waiting_.begin()->second;
    waiting_.erase(waiting_.begin());
    return job;
  }

  void end() { ++idle_; }

 private:
  std::multimap<std::int32_t, Job, std::greater<>> waiting_;  // equal priorities keep their order
  double wakeup_seconds_;
  unsigned idle_;
};

}  // namespace gradwire::fusion
