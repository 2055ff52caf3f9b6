#include "kvstore/aggregate/partition_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "compress/codec.h"
#include "kvstore/wire/protocol.h"
#include "kvstore/wire/state_bytes.h"

namespace gradwire::kvstore {
namespace {

/// Bytes before the arrays: next_step u64, the optimizer's steps u64, which arrays follow u32, kinds of
/// moments u32.
constexpr std::size_t kHeadBytes = 24;
/// Likewise of an optimizer's state alone: its steps u64.
constexpr std::size_t kOptimizerHeadBytes = 8;
constexpr std::uint32_t kHasValue = 1, kHasResidual = 2, kHasHeld = 4, kHasFirst64 = 8;

}  // namespace

transport::Buffer encode_state(const PartitionState& state) {
  // Either may be missing, but moments and `held_by_workers` come with a value.
  const std::size_t count = std::max(state.value.size(), state.residual.size());
  const std::size_t moments = state.optimizer.moments.size();
  const std::size_t floats =
      state.value.size() + state.residual.size() + state.held_by_workers.size() + moments;
  const std::uint32_t arrays =
      (state.value.empty() ? 0U : kHasValue) | (state.residual.empty() ? 0U : kHasResidual) |
      (state.held_by_workers.empty() ? 0U : kHasHeld) | (state.first64.empty() ? 0U : kHasFirst64);
  StateWriter to(kHeadBytes + floats * sizeof(float) + state.first64.size() * sizeof(double));
  to.put(state.next_step).put(state.optimizer.steps).put(arrays);
  to.put(count == 0 ? 0U : static_cast<std::uint32_t>(moments / count));
  to.put(state.value)
      .put(state.residual)
      .put(state.optimizer.moments)
      .put(state.held_by_workers)
      .put(state.first64);
  return std::move(to).buffer();
}

PartitionState decode_partition_state(std::span<const std::byte> bytes, std::uint64_t count) {
  StateReader from("state", bytes, kHeadBytes);
  PartitionState state;
  state.next_step = from.get<std::uint64_t>();
  state.optimizer.steps = from.get<std::uint64_t>();
  const auto arrays = from.get<std::uint32_t>();
  const auto moments = from.get<std::uint32_t>();
  if (state.next_step > kMaxSteps || state.optimizer.steps > kMaxSteps ||
      arrays > (kHasValue | kHasResidual | kHasHeld | kHasFirst64) || moments > kMaxMoments ||
      ((moments > 0 || (arrays & (kHasHeld | kHasFirst64)) != 0) && (arrays & kHasValue) == 0)) {
    throw compress::DecodeError(fmt::format(
        "state: step {}, optimizer's step {}, arrays {:#x} and {} kinds of moments are none that a "
        "server has",
        state.next_step, state.optimizer.steps, arrays, moments));
  }
  // In arrays of float32: one of float64 is two of them.
  const bool has_first64 = (arrays & kHasFirst64) != 0;
  const std::uint64_t kinds =
      static_cast<std::uint64_t>(std::popcount(arrays)) + moments + (has_first64 ? 1 : 0);
  const std::uint64_t floats = from.left() / sizeof(float);
  const bool is_whole = from.left() % sizeof(float) == 0;
  // Divided and not multiplied, because a peer chooses the numbers and a product could overflow.
  if (!is_whole || (kinds == 0 ? floats != 0 : floats % kinds != 0 || floats / kinds != count)) {
    throw compress::DecodeError(
        fmt::format("state: {} bytes do not hold {} arrays of {} elements", bytes.size(), kinds, count));
  }
  if ((arrays & kHasValue) != 0) state.value = from.array<float>(count);
  if ((arrays & kHasResidual) != 0) state.residual = from.array<float>(count);
  state.optimizer.moments = from.array<float>(moments * count);
  if ((arrays & kHasHeld) != 0) state.held_by_workers = from.array<float>(count);
  if (has_first64) state.first64 = from.array<double>(count);
  return state;
}

transport::Buffer encode_state(const OptimizerState& state) {
  StateWriter to(kOptimizerHeadBytes + state.moments.size() * sizeof(float));
  to.put(state.steps).put(state.moments);
  return std::move(to).buffer();
}

OptimizerState decode_optimizer_state(std::span<const std::byte> bytes, std::uint64_t count) {
  StateReader from("optimizer's state", bytes, kOptimizerHeadBytes);
  OptimizerState state;
  state.steps = from.get<std::uint64_t>();
  const std::uint64_t floats = from.left() / sizeof(float);
  const std::uint64_t kinds = count == 0 ? 0 : floats / count;
  if (from.left() % sizeof(float) != 0 || kinds > kMaxMoments || kinds * count != floats) {
    throw compress::DecodeError(
        fmt::format("optimizer's state: {} bytes do not hold moments of {} elements", bytes.size(), count));
  }
  if (state.steps > kMaxSteps)
    throw compress::DecodeError(fmt::format("optimizer's state: step {} is above any", state.steps));
  state.moments = from.array<float>(floats);
  return state;
}

}  // namespace gradwire::kvstore
