// fusion's plan of a step is what the store does: the same parts on the same servers.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "compress/codec.h"
#include "fusion/step_plan.h"
#include "kvstore/wire/key.h"

namespace gradwire::kvstore {
namespace {

TEST(PlannedParts, AreThoseThatKeysAreCutInto) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 50; ++trial) {
    const std::uint32_t servers = 1 + static_cast<std::uint32_t>(random() % 12);
    std::vector<std::uint64_t> elements(1 + random() % 20);
    std::vector<KeySpec> keys;
    for (std::uint64_t& count : elements) {
      count = 1 + random() % 4'000'000;
      keys.push_back({std::to_string(keys.size()), {count}});
    }
    fusion::PlanLimits limits;
    limits.unit_elements = compress::kUnitElements;
    limits.fusion_bytes = 0;
    std::vector<std::uint64_t> load(servers, 0);
    limits.shortest_piece_elements = (1 + random() % 2) * compress::kUnitElements;
    const fusion::OwnedCut cut{limits.partition_elements, limits.least_pieces,
                               limits.shortest_piece_elements};
    const auto placed = place_keys(keys, servers, cut, limits.shard_bound_elements, load);
    const fusion::StepPlan plan = fusion::plan_step(elements, servers, 0, limits);
    for (std::size_t key = 0; key < plan.keys.size(); ++key) {
      const std::uint32_t layer = plan.keys[key].layers.front();
      std::vector<std::pair<std::uint32_t, std::uint64_t>> theirs;
      std::vector<std::pair<std::uint32_t, std::uint64_t>> ours;
      for (const Part& part : placed[layer]) theirs.emplace_back(part.server, part.count);
      for (const fusion::PlannedPart& part : plan.parts) {
        if (part.key == key) ours.emplace_back(part.server, part.elements);
      }
      EXPECT_EQ(ours, theirs) << "layer " << layer;
    }
  }
}

}  // namespace
}  // namespace gradwire::kvstore
