#include "kvstore/client/tensor_state.h"

#include <fmt/format.h>

#include <utility>

#include "compress/payload/little_endian.h"
#include "kvstore/wire/protocol.h"
#include "kvstore/wire/state_bytes.h"

namespace gradwire::kvstore {
namespace {

using compress::load;
using compress::UnitScale;

/// Bytes before the arrays: step, elements of the residual, units with a scale, bytes of text; u64 each.
constexpr std::size_t kHeadBytes = 32;

}  // namespace

std::vector<std::byte> encode_state(const TensorState& state) {
  StateWriter to(kHeadBytes + state.residual.size() * sizeof(float) +
                 state.scales.size() * sizeof(UnitScale) + state.compression.size());
  to.put(state.step);
  for (const std::uint64_t size : {state.residual.size(), state.scales.size(), state.compression.size()})
    to.put(size);
  to.put(state.residual).put(state.scales).put(state.compression);
  return std::move(to).bytes();
}

std::uint64_t step_of(std::span<const std::byte> head) {
  // Too few bytes are refused like a step that is too large.
  const auto step = head.size() < kStepBytes ? kMaxSteps + 1 : load<std::uint64_t>(head.data());
  if (step > kMaxSteps) {
    throw compress::DecodeError(
        fmt::format("tensor state: {} bytes do not begin with a step that a worker has", head.size()));
  }
  return step;
}

TensorState decode_tensor_state(std::span<const std::byte> bytes, std::uint64_t count) {
  static_assert(sizeof(UnitScale) == 2 * sizeof(float));
  StateReader from("tensor state", bytes, kHeadBytes);
  TensorState state;
  state.step = from.get<std::uint64_t>();
  const auto floats = from.get<std::uint64_t>();
  const auto scales = from.get<std::uint64_t>();
  const auto text = from.get<std::uint64_t>();
  const std::uint64_t rest = from.left();
  // Each by itself first, so that their sum cannot overflow.
  if (state.step > kMaxSteps || (floats != 0 && floats != count) || floats > rest / sizeof(float) ||
      scales > rest / sizeof(UnitScale) || text > rest ||
      floats * sizeof(float) + scales * sizeof(UnitScale) + text != rest) {
    throw compress::DecodeError(fmt::format(
        "tensor state: {} bytes do not hold a residual of {}, {} scales and {} bytes of text of a tensor "
        "of {} elements at step {}",
        bytes.size(), floats, scales, text, count, state.step));
  }
  state.residual = from.array<float>(floats);
  state.scales = from.array<UnitScale>(scales);
  const auto name = from.array<char>(text);
  state.compression.assign(name.begin(), name.end());
  return state;
}

}  // namespace gradwire::kvstore
