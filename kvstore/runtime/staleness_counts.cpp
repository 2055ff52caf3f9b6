#include "kvstore/runtime/staleness_counts.h"

namespace gradwire::kvstore {

void StalenessCounts::add(std::uint64_t staleness) {
  const std::lock_guard lock(mutex_);
  ++counts_[staleness];
}

std::map<std::uint64_t, std::uint64_t> StalenessCounts::get() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace gradwire::kvstore
