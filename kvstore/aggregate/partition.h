// What a server keeps of one partition, and of its rounds in progress.
//
// Threading: one owner.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "kvstore/aggregate/contributions.h"
#include "kvstore/aggregate/program_steps.h"
#include "kvstore/aggregate/push_clocks.h"
#include "kvstore/aggregate/updater.h"
#include "kvstore/wire/protocol.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

/// A round of a partition.
struct Round {
  transport::FrameHeader first;                            ///< the header all others must match
  std::vector<std::optional<transport::Buffer>> payloads;  ///< by rank
  std::optional<IntegerContributions> integers;            ///< in place of payloads
  std::uint32_t arrived = 0;
  std::uint32_t flags = 0;
  bool is_upstream = false;         ///< its sum; the payloads are given back
  bool takes_shortened = false;     ///< a worker sent a shortened payload, and reads shortened replies
  std::set<std::uint32_t> holders;  ///< workers that have the weight of the round before
  ProgramSteps program_steps;
};

/// What was sent to a worker of a weight, where pushes are applied at once and it gets deltas.
struct SentWeight {
  std::vector<float> weight;  ///< as the worker has it, or will have; empty: none, the next goes whole
  std::uint64_t last_pull = kNoStep;  ///< steps of a worker's pulls descend
};

struct Partition {
  std::uint64_t count = 0;
  std::vector<float> value;     ///< first value or weight; empty: only sums are held
  std::vector<double> first64;  ///< the first value, where it is of float64; while there are no weights
  std::vector<float> residual;  ///< what replies of a lossy codec have not sent yet
  std::vector<float>
      held_by_workers;  ///< the weight as workers have it where they get deltas; empty: none has
  std::map<std::uint32_t, SentWeight> sent_to_each;  ///< likewise, by worker, at once
  /// By worker that gave a first value or a state: the step of the newest; they descend. For the job's life,
  /// since what comes late may come at any time.
  std::map<std::uint32_t, std::uint64_t> given;
  OptimizerState optimizer_state;
  std::uint64_t optimizer_load = 0;        ///< number of the last one that was written, from 1
  std::map<std::uint64_t, Round> rounds;   ///< by step
  std::uint64_t next_step = 0;             ///< first step not yet answered; at once: that nobody has pushed
  std::optional<transport::Frame> answer;  ///< to step next_step - 1
  std::optional<PushClocks> clocks;        ///< where pushes are applied at once
  std::map<std::uint32_t, transport::FrameHeader>
      held_pushes;  ///< by worker: pushes that went in and are not answered yet, since their worker is ahead

  /// Whether a worker's first value or state came before, or one that it gave later.
  bool came_before(std::uint32_t worker, std::uint64_t step) const {
    const auto newest = given.find(worker);
    return newest != given.end() && step >= newest->second;
  }
};

struct PartitionId {
  std::uint64_t key = 0, offset = 0;
  auto operator<=>(const PartitionId&) const = default;
};
using Partitions = std::map<PartitionId, Partition>;

}  // namespace gradwire::kvstore
