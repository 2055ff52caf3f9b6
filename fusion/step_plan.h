// StepPlan: what is sent in a step. Layers become keys, keys become parts, and each part has a home on a
// server, as the store decides for tensors that are bound as slots.
//
// Threading: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fusion/partition.h"

namespace gradwire::fusion {

/// How tensors are fused, cut and placed.
struct PlanLimits {
  std::uint64_t partition_elements =
      OwnedCut{}.max_elements;             ///< most in a part, rounded down to whole units
  std::uint64_t unit_elements = 1U << 16;  ///< of the codec
  std::uint64_t least_pieces = OwnedCut{}.least_pieces;
  std::uint64_t shortest_piece_elements = OwnedCut{}.shortest_elements;
  std::uint64_t shard_bound_elements = 1U << 17;  ///< from here on a tensor is cut over all servers
  std::uint64_t fusion_bytes = 256U << 10;        ///< smaller tensors share a key; 0: never
};

/// One or several layers that travel under one name.
struct PlannedKey {
  std::vector<std::uint32_t> layers;  ///< ready when all of these are
  std::int32_t priority = 0;          ///< of its foremost layer, the front layer's is highest
  std::vector<std::size_t> turns;     ///< its parts, in the order in which they are encoded
};

struct PlannedPart {
  std::uint32_t key = 0;
  std::uint32_t server = 0;
  std::uint64_t elements = 0;
  bool operator==(const PlannedPart&) const = default;
};

struct StepPlan {
  std::vector<PlannedKey> keys;
  std::vector<PlannedPart> parts;  ///< of one key in order of their elements
};

/// Plans layers of these elements, front layer first, for so many servers; `first` is the one whose parts are
/// encoded first. Throws std::invalid_argument where cut() or place() does.
StepPlan plan_step(std::span<const std::uint64_t> layer_elements, std::uint32_t servers, std::uint32_t first,
                   const PlanLimits& limits);

}  // namespace gradwire::fusion
