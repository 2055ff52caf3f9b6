#include "kvstore/aggregate/push_clocks.h"

namespace gradwire::kvstore {

void PushClocks::count(std::uint32_t worker, std::uint64_t step) {
  Worker& pusher = workers_[worker];
  pusher.staleness = others_than(pusher) - pusher.others_shown;
  pusher.next_step = step + 1;
  ++pusher.pushes;
  ++total_;
}

void PushClocks::show(std::uint32_t worker) { workers_[worker].others_shown = others_than(workers_[worker]); }

std::vector<std::uint32_t> PushClocks::awaited_by(std::uint32_t worker) const {
  std::vector<std::uint32_t> behind;
  const std::uint64_t clock = workers_[worker].next_step;
  // Nobody can be further behind than the bound, and the unsigned difference below would wrap.
  if (!policy_.staleness_bound || clock <= *policy_.staleness_bound) return behind;
  const std::uint64_t least = clock - *policy_.staleness_bound;
  for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
    if (workers_[rank].next_step < least) behind.push_back(rank);
  }
  return behind;
}

PushClocks& AsyncWorkers::clocks_of(std::optional<PushClocks>& weights_own, std::uint64_t first_step) const {
  if (!weights_own) weights_own.emplace(static_cast<std::uint32_t>(is_gone_.size()), *policy_, first_step);
  return *weights_own;
}

std::vector<std::uint32_t> AsyncWorkers::awaited_by(std::uint32_t worker, const PushClocks& clocks) const {
  auto ranks = clocks.awaited_by(worker);
  std::erase_if(ranks, [this](std::uint32_t rank) { return is_gone_[rank] || meeting_.is_away(rank); });
  return ranks;
}

}  // namespace gradwire::kvstore
