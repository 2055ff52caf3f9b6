// The lower bound of a schedule: the least seconds that a step of training can take, in whatever order
// gradients are sent.
//
// Threading: pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace gradwire::fusion {

/// One layer of a step on one worker, and the cost of its gradient: seconds for which the busiest link is
/// busy with its push and its sum.
struct LayerLoad {
  double forward_seconds = 0;
  double backward_seconds = 0;
  double wire_seconds = 0;
};

/// What the next step's forward waits for.
enum class NextForward : std::uint8_t {
  kPerLayer,  ///< each layer for its own sum (overlap_step)
  kDrained,   ///< the first layer for all sums
};

/// Returns the least seconds of a step in steady state: a preemptive schedule with infinitely small
/// partitions, no latency, and codecs that cost nothing. Layers front first.
///
/// All sums of a step have arrived before the next backward begins, so every step begins with an empty wire.
/// Layer i's gradient is ready when backward has done layers i and behind. The sums of layers 0 to i are all
/// there no sooner than ready(k) + wire(0) + ... + wire(k) for each k <= i, and sending the front layer first
/// reaches this for every i at once (preemptive earliest deadline first is optimal on one machine: Horn,
/// 1974), so no schedule lets any forward begin sooner. Checked against all schedules in the tests.
double least_step_seconds(std::span<const LayerLoad> layers, NextForward next);

}  // namespace gradwire::fusion
