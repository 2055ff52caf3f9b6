// PartitionState is everything that a server keeps of a partition between rounds. As bytes, workers fetch it
// and return it for a checkpoint (wire/PROTOCOL.md, "States").
//
// Threading: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvstore/aggregate/updater.h"
#include "transport/buffer.h"

namespace gradwire::kvstore {

struct PartitionState {
  std::uint64_t next_step = 0;  ///< rounds answered so far
  std::vector<float> value;     ///< first value or weight; empty: a round's sum has taken its place
  std::vector<float> residual;  ///< what replies of a lossy codec have not sent yet; empty: none
  OptimizerState optimizer;
  std::vector<float>
      held_by_workers{};  ///< the weight as workers have it where they get deltas; empty: they get none
  std::vector<double> first64{};  ///< the value, where that is a first one of float64; empty: it is not
  bool operator==(const PartitionState&) const = default;
};

/// Kinds of moments in a state; above any optimizer's.
inline constexpr std::uint32_t kMaxMoments = 8;

/// Writes a state. Requires that each of its arrays is empty or as long as the partition (moments: a
/// multiple).
transport::Buffer encode_state(const PartitionState& state);

/// Reads the state of a partition of `count` elements. Throws compress::DecodeError for any other bytes,
/// before anything of their size is made.
PartitionState decode_partition_state(std::span<const std::byte> bytes, std::uint64_t count);

/// Likewise what the optimizer alone keeps of it.
transport::Buffer encode_state(const OptimizerState& state);
OptimizerState decode_optimizer_state(std::span<const std::byte> bytes, std::uint64_t count);

}  // namespace gradwire::kvstore
