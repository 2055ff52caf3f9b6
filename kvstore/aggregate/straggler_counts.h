// StragglerCounts counts how often each worker's push was the last that a round needed. The threads of a
// server share one, so that every round counts once, whichever thread sums it.
//
// Threading: safe by itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace gradwire::kvstore {

class StragglerCounts {
 public:
  explicit StragglerCounts(std::uint32_t workers) : counts_(workers) {}

  void note(std::uint32_t worker) { counts_[worker].fetch_add(1, std::memory_order_relaxed); }
  /// By rank.
  std::vector<std::uint64_t> counts() const { return {counts_.begin(), counts_.end()}; }

 private:
  std::vector<std::atomic<std::uint64_t>> counts_;
};

}  // namespace gradwire::kvstore
