#include "kvstore/aggregate/partition_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "compress/codec.h"
#include "compress/payload/little_endian.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {
namespace {

using compress::load;
using compress::store;

/// Bytes before the arrays: next_step u64, the optimizer's steps u64, which arrays follow u32, kinds of
/// moments u32.
constexpr std::size_t kHeadBytes = 24;
/// Likewise of an optimizer's state alone: its steps u64.
constexpr std::size_t kOptimizerHeadBytes = 8;
constexpr std::uint32_t kHasValue = 1, kHasResidual = 2, kHasTold = 4, kHasFirst64 = 8;

template <typename Element>
std::byte* put(const std::vector<Element>& values, std::byte* to) {
  const auto bytes = std::as_bytes(std::span(values));
  return std::ranges::copy(bytes, to).out;
}

template <typename Element = float>
std::vector<Element> take(const std::byte*& from, std::uint64_t elements) {
  std::vector<Element> values(elements);
  const std::size_t bytes = elements * sizeof(Element);
  std::copy_n(from, bytes, std::as_writable_bytes(std::span(values)).data());
  from += bytes;
  return values;
}

}  // namespace

transport::Buffer encode_state(const PartitionState& state) {
  const std::size_t count = std::max(state.value.size(), state.residual.size());
  const std::size_t moments = state.optimizer.moments.size();
  const std::size_t floats = state.value.size() + state.residual.size() + state.told.size() + moments;
  transport::Buffer buffer = transport::Buffer::allocate(kHeadBytes + floats * sizeof(float) +
                                                         state.first64.size() * sizeof(double));
  std::byte* to = buffer.bytes().data();
  store(state.next_step, to);
  store(state.optimizer.steps, to + 8);
  store((state.value.empty() ? 0U : kHasValue) | (state.residual.empty() ? 0U : kHasResidual) |
            (state.told.empty() ? 0U : kHasTold) | (state.first64.empty() ? 0U : kHasFirst64),
        to + 16);
  store(count == 0 ? 0U : static_cast<std::uint32_t>(moments / count), to + 20);
  to = put(state.value, to + kHeadBytes);
  to = put(state.residual, to);
  to = put(state.optimizer.moments, to);
  to = put(state.told, to);
  put(state.first64, to);
  return buffer;
}

PartitionState decode_partition_state(std::span<const std::byte> bytes, std::uint64_t count) {
  if (bytes.size() < kHeadBytes) {
    throw compress::DecodeError(
        fmt::format("state: {} bytes given, expected at least {}", bytes.size(), kHeadBytes));
  }
  const std::byte* at = bytes.data();
  PartitionState state;
  state.next_step = load<std::uint64_t>(at);
  state.optimizer.steps = load<std::uint64_t>(at + 8);
  const auto arrays = load<std::uint32_t>(at + 16);
  const auto moments = load<std::uint32_t>(at + 20);
  if (state.next_step > kMaxSteps || state.optimizer.steps > kMaxSteps ||
      arrays > (kHasValue | kHasResidual | kHasTold | kHasFirst64) || moments > kMaxMoments ||
      ((moments > 0 || (arrays & (kHasTold | kHasFirst64)) != 0) && (arrays & kHasValue) == 0)) {
    throw compress::DecodeError(fmt::format(
        "state: step {}, optimizer's step {}, arrays {:#x} and {} kinds of moments are none that a "
        "server has",
        state.next_step, state.optimizer.steps, arrays, moments));
  }
  // In arrays of float32: one of float64 is two of them.
  const bool has_first64 = (arrays & kHasFirst64) != 0;
  const std::uint64_t kinds =
      static_cast<std::uint64_t>(std::popcount(arrays)) + moments + (has_first64 ? 1 : 0);
  const std::uint64_t floats = (bytes.size() - kHeadBytes) / sizeof(float);
  const bool is_whole = (bytes.size() - kHeadBytes) % sizeof(float) == 0;
  if (!is_whole || (kinds == 0 ? floats != 0 : floats % kinds != 0 || floats / kinds != count)) {
    throw compress::DecodeError(
        fmt::format("state: {} bytes do not hold {} arrays of {} elements", bytes.size(), kinds, count));
  }
  at += kHeadBytes;
  if ((arrays & kHasValue) != 0) state.value = take(at, count);
  if ((arrays & kHasResidual) != 0) state.residual = take(at, count);
  state.optimizer.moments = take(at, moments * count);
  if ((arrays & kHasTold) != 0) state.told = take(at, count);
  if (has_first64) state.first64 = take<double>(at, count);
  return state;
}

transport::Buffer encode_state(const OptimizerState& state) {
  transport::Buffer buffer =
      transport::Buffer::allocate(kOptimizerHeadBytes + state.moments.size() * sizeof(float));
  store(state.steps, buffer.bytes().data());
  put(state.moments, buffer.bytes().data() + kOptimizerHeadBytes);
  return buffer;
}

OptimizerState decode_optimizer_state(std::span<const std::byte> bytes, std::uint64_t count) {
  const std::size_t array_bytes = bytes.size() - std::min(bytes.size(), kOptimizerHeadBytes);
  const std::uint64_t floats = array_bytes / sizeof(float);
  const bool is_whole = bytes.size() >= kOptimizerHeadBytes && array_bytes % sizeof(float) == 0;
  const std::uint64_t kinds = count == 0 ? 0 : floats / count;
  if (!is_whole || kinds > kMaxMoments || kinds * count != floats) {
    throw compress::DecodeError(
        fmt::format("optimizer's state: {} bytes do not hold moments of {} elements", bytes.size(), count));
  }
  const std::byte* at = bytes.data();
  OptimizerState state;
  state.steps = load<std::uint64_t>(at);
  if (state.steps > kMaxSteps)
    throw compress::DecodeError(fmt::format("optimizer's state: step {} is above any", state.steps));
  at += kOptimizerHeadBytes;
  state.moments = take(at, floats);
  return state;
}

}  // namespace gradwire::kvstore
