#include "fusion/step_plan.h"

#include <algorithm>
#include <limits>

#include "fusion/bucket.h"
#include "fusion/partition.h"
#include "fusion/placement.h"

namespace gradwire::fusion {
namespace {

void add_parts(const std::vector<Shard>& shards, std::uint64_t elements, const PlanLimits& limits,
               StepPlan& plan) {
  const auto key = static_cast<std::uint32_t>(plan.keys.size() - 1);
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const std::uint64_t end = s + 1 < shards.size() ? shards[s + 1].begin : elements;
    const std::uint64_t owned = end - shards[s].begin;
    if (owned == 0) continue;
    const OwnedCut rule{limits.partition_elements, limits.least_pieces, limits.shortest_piece_elements};
    for (const Partition& piece : cut_owned(owned, limits.unit_elements, rule)) {
      plan.parts.push_back({key, shards[s].server, piece.count});
    }
  }
}

void set_turns(StepPlan& plan, std::size_t first_part, std::uint32_t first) {
  std::vector<std::uint32_t> owners;
  for (std::size_t p = first_part; p < plan.parts.size(); ++p) owners.push_back(plan.parts[p].server);
  plan.keys.back().turns = in_turns(owners, first);
  for (std::size_t& turn : plan.keys.back().turns) turn += first_part;
}

}  // namespace

StepPlan plan_step(std::span<const std::uint64_t> layer_elements, std::uint32_t servers, std::uint32_t first,
                   const PlanLimits& limits) {
  std::vector<TensorSize> tensors;
  std::vector<std::uint64_t> bytes;
  for (const std::uint64_t elements : layer_elements) {
    tensors.push_back({elements});
    bytes.push_back(elements * tensors.back().element_bytes);
  }
  std::vector<std::uint64_t> load(servers, 0);
  const auto homes = place(tensors, servers, limits.unit_elements, limits.shard_bound_elements, load);
  StepPlan plan;
  for (const Bucket& bucket : fuse(bytes, limits.fusion_bytes).buckets) {
    const std::uint32_t foremost = std::ranges::min(bucket.slots);
    // As urgent as its foremost layer, which goes forward first.
    plan.keys.push_back({bucket.slots, -static_cast<std::int32_t>(foremost), {}});
    const std::size_t first_part = plan.parts.size();
    if (bucket.slots.size() == 1) {
      add_parts(homes[foremost], tensors[foremost].elements, limits, plan);
    } else {  // goes whole, as one part
      std::uint64_t elements = 0;
      for (const std::uint32_t slot : bucket.slots) elements += tensors[slot].elements;
      const TensorSize fused{elements};
      // A bucket is small: no bound is low enough to shard it.
      const auto home =
          place({&fused, 1}, servers, limits.unit_elements, std::numeric_limits<std::uint64_t>::max(), load);
      plan.parts.push_back(
          {static_cast<std::uint32_t>(plan.keys.size() - 1), home.front().front().server, elements});
    }
    set_turns(plan, first_part, first);
  }
  return plan;
}

}  // namespace gradwire::fusion
