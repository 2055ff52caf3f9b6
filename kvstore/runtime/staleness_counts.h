// StalenessCounts counts the staleness of a worker's pushes that were applied at once (wire/async_policy.h).
//
// Threading: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace gradwire::kvstore {

/// How often each staleness occurred.
class StalenessCounts {
 public:
  void add(std::uint64_t staleness);
  std::map<std::uint64_t, std::uint64_t> get() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> counts_;
};

}  // namespace gradwire::kvstore
