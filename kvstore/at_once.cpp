#include "kvstore/at_once.h"

#include <fmt/format.h>

#include <charconv>
#include <stdexcept>

namespace gradwire::kvstore {
namespace {

constexpr std::string_view kName = "at_once";
constexpr std::string_view kBound = " staleness_bound=";

}  // namespace

std::string to_string(const AtOnce& policy) {
  if (!policy.staleness_bound) return std::string(kName);
  return fmt::format("{}{}{}", kName, kBound, *policy.staleness_bound);
}

AtOnce parse_at_once(std::string_view text) {
  std::string_view rest = text;
  const bool is_known = rest.starts_with(kName);
  if (is_known) rest.remove_prefix(kName.size());
  if (is_known && rest.empty()) return {};
  std::uint64_t bound = 0;
  if (is_known && rest.starts_with(kBound)) {
    rest.remove_prefix(kBound.size());
    const char* const end = rest.data() + rest.size();
    const auto [stopped, error] = std::from_chars(rest.data(), end, bound);
    if (error == std::errc() && stopped == end) return {bound};
  }
  throw std::invalid_argument(fmt::format(
      "rounds '{}' are not known; expected 'at_once' or 'at_once staleness_bound=4'", text.substr(0, 80)));
}

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
  if (!policy_.staleness_bound || clock <= *policy_.staleness_bound) return behind;
  const std::uint64_t least = clock - *policy_.staleness_bound;
  for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
    if (workers_[rank].next_step < least) behind.push_back(rank);
  }
  return behind;
}

PushClocks& AtOnceWorkers::clocks_of(std::optional<PushClocks>& weights_own, std::uint64_t first_step) const {
  if (!weights_own) weights_own.emplace(static_cast<std::uint32_t>(is_gone_.size()), *policy_, first_step);
  return *weights_own;
}

std::vector<std::uint32_t> AtOnceWorkers::awaited_by(std::uint32_t worker, const PushClocks& clocks) const {
  auto ranks = clocks.awaited_by(worker);
  std::erase_if(ranks, [this](std::uint32_t rank) { return is_gone_[rank] || meeting_.is_away(rank); });
  return ranks;
}

void StalenessCounts::add(std::uint64_t staleness) {
  const std::lock_guard lock(mutex_);
  ++counts_[staleness];
}

std::map<std::uint64_t, std::uint64_t> StalenessCounts::get() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace gradwire::kvstore
