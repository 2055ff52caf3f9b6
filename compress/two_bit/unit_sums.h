// Sums of |x| over one codec unit in one written order, which CPUs and devices follow alike.
//
// A unit is cut into blocks of 1024 elements. A block is added up as payload/lane_sums.h says, and a unit's
// 64 blocks are folded like lanes. So a block is 16 additions deep, and blocks do not wait for each other.
// Absent elements and blocks count as 0.
//
// Threading: all functions are pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "compress/codec.h"
#include "compress/payload/host_device.h"
#include "compress/payload/lane_sums.h"

namespace gradwire::compress::two_bit {

inline constexpr std::size_t kBlockElements = 1024;
inline constexpr std::size_t kUnitBlocks = kUnitElements / kBlockElements;

/// A unit's sum as payloads have it: infinity is the largest float.
GRADWIRE_HOST_DEVICE inline float saturated(float sum) noexcept {
  return sum < std::numeric_limits<float>::max() ? sum : std::numeric_limits<float>::max();
}

/// What the lanes of one block hold.
struct BlockLanes {
  std::array<float, kSumLanes> all{};       ///< of finite x
  std::array<float, kSumLanes> selected{};  ///< of sent x
  std::uint32_t selected_count = 0;

  /// Adds element i of the block, of magnitude x.
  void add(std::size_t i, float x, bool sent) noexcept {
    all[i % kSumLanes] += x;
    selected[i % kSumLanes] += sent ? x : 0.0f;
    selected_count += sent ? 1 : 0;
  }
};

/// What the blocks of one unit hold, as far as they were appended.
struct UnitSums {
  std::array<float, kUnitBlocks> all{};
  std::array<float, kUnitBlocks> selected{};
  std::uint32_t selected_count = 0;
  std::size_t blocks = 0;

  /// Appends a block whose lanes are folded.
  void append(float block_all, float block_selected, std::uint32_t count) noexcept {
    all[blocks] = block_all;
    selected[blocks] = block_selected;
    selected_count += count;
    ++blocks;
  }
  void append(const BlockLanes& lanes) noexcept {
    append(fold(lanes.all), fold(lanes.selected), lanes.selected_count);
  }
  float sum_all() const noexcept { return saturated(fold(all)); }
  float sum_selected() const noexcept { return saturated(fold(selected)); }
};

}  // namespace gradwire::compress::two_bit
