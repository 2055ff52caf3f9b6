#include "kvstore/client/tensor_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "compress/payload/little_endian.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {
namespace {

using compress::load;
using compress::store;
using compress::UnitScale;

/// Bytes before the arrays: step, elements of the residual, units with a scale, bytes of text; u64 each.
constexpr std::size_t kHeadBytes = 32;

}  // namespace

std::vector<std::byte> encode_state(const TensorState& state) {
  const auto residual = std::as_bytes(std::span(state.residual));
  const auto scales = std::as_bytes(std::span(state.scales));
  const auto text = std::as_bytes(std::span(state.compression));
  std::vector<std::byte> bytes(kHeadBytes + residual.size() + scales.size() + text.size());
  store<std::uint64_t>(state.step, bytes.data());
  store<std::uint64_t>(state.residual.size(), bytes.data() + 8);
  store<std::uint64_t>(state.scales.size(), bytes.data() + 16);
  store<std::uint64_t>(text.size(), bytes.data() + 24);
  std::byte* to = bytes.data() + kHeadBytes;
  for (const auto part : {residual, scales, text}) to = std::ranges::copy(part, to).out;
  return bytes;
}

std::uint64_t step_of(std::span<const std::byte> head) {
  const auto step = head.size() < kStepBytes ? kMaxSteps + 1 : load<std::uint64_t>(head.data());
  if (step > kMaxSteps) {
    throw compress::DecodeError(
        fmt::format("tensor state: {} bytes do not begin with a step that a worker has", head.size()));
  }
  return step;
}

TensorState decode_tensor_state(std::span<const std::byte> bytes, std::uint64_t count) {
  static_assert(sizeof(UnitScale) == 2 * sizeof(float));
  if (bytes.size() < kHeadBytes) {
    throw compress::DecodeError(
        fmt::format("tensor state: {} bytes given, expected at least {}", bytes.size(), kHeadBytes));
  }
  const std::byte* at = bytes.data();
  TensorState state;
  state.step = load<std::uint64_t>(at);
  const auto floats = load<std::uint64_t>(at + 8);
  const auto scales = load<std::uint64_t>(at + 16);
  const auto text = load<std::uint64_t>(at + 24);
  const std::uint64_t rest = bytes.size() - kHeadBytes;
  // Each by itself first, so that their sum cannot overflow.
  if (state.step > kMaxSteps || (floats != 0 && floats != count) || floats > rest / sizeof(float) ||
      scales > rest / sizeof(UnitScale) || text > rest ||
      floats * sizeof(float) + scales * sizeof(UnitScale) + text != rest) {
    throw compress::DecodeError(fmt::format(
        "tensor state: {} bytes do not hold a residual of {}, {} scales and {} bytes of text of a tensor "
        "of {} elements at step {}",
        bytes.size(), floats, scales, text, count, state.step));
  }
  at += kHeadBytes;
  state.residual.resize(floats);
  state.scales.resize(scales);
  state.compression.resize(text);
  for (const auto part :
       {std::as_writable_bytes(std::span(state.residual)), std::as_writable_bytes(std::span(state.scales)),
        std::as_writable_bytes(std::span(state.compression))}) {
    std::copy_n(at, part.size(), part.data());
    at += part.size();
  }
  return state;
}

}  // namespace gradwire::kvstore
