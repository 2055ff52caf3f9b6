// TensorState is what a worker keeps of a tensor between rounds. As bytes, it is a checkpoint's part of the
// tensor.
//
// Threading: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compress/codec.h"

namespace gradwire::kvstore {

struct TensorState {
  std::uint64_t step = 0;                   ///< rounds begun
  std::vector<float> residual;              ///< one flat array; empty: none
  std::vector<compress::UnitScale> scales;  ///< agreed for the next round, by unit; empty: none
  std::string compression;                  ///< who agreed them; empty where nobody did
  bool operator==(const TensorState&) const = default;
};

std::vector<std::byte> encode_state(const TensorState& state);

/// Bytes of a state that step_of() reads.
inline constexpr std::size_t kStepBytes = 8;
/// The step alone, from a state's first bytes. Throws compress::DecodeError where that is none.
std::uint64_t step_of(std::span<const std::byte> head);

/// Reads the state of a tensor of `count` elements. Throws compress::DecodeError for any other bytes, before
/// anything of their size is made.
TensorState decode_tensor_state(std::span<const std::byte> bytes, std::uint64_t count);

}  // namespace gradwire::kvstore
