// Work items: the algorithms of the device codecs are written once, as functors of an item's index, and run
// under any Thrust execution policy: a CUDA stream, or the host in tests. No item reads what another of the
// same run writes, so their order does not matter.
//
// A Backend is made from a DeviceStream. Its each(items, work) runs work(0), work(1), ... work(items - 1) in
// any order, after all that was enqueued on the stream before. Its fold(groups, work) does the same for
// groups of kGroupItems items that add up what they find.
#pragma once

#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>

#include <cstddef>
#include <cstdint>
#include <cuda/atomic>

#include "compress/device/device_codec.h"
#include "compress/device/four_elements.h"
#include "compress/payload/host_device.h"
#include "compress/payload/lane_sums.h"

namespace gradwire::compress {

/// Runs the items under a policy; returns when they are enqueued.
template <typename Policy, typename Work>
void for_each_item(const Policy& policy, std::size_t items, const Work& work) {
  thrust::for_each_n(policy, thrust::counting_iterator<std::size_t>(0), items, work);
}

/// Items of a group: half a warp.
inline constexpr std::size_t kGroupItems = 16;

/// Sums of floats in the lanes of an item's four elements, as lane_sums.h has them.
struct FourLanes {
  Four lanes{};
  GRADWIRE_HOST_DEVICE void add(std::size_t j, float x) { lanes.x[j] += x; }
  GRADWIRE_HOST_DEVICE void add(const FourLanes& other) {
    for (std::size_t j = 0; j < kItemElements; ++j) lanes.x[j] += other.lanes.x[j];
  }
  /// What is left once items are added up.
  GRADWIRE_HOST_DEVICE float sum() const { return (lanes.x[0] + lanes.x[2]) + (lanes.x[1] + lanes.x[3]); }
};
static_assert(kGroupItems * kItemElements == kSumLanes);

/// Adds up the parts of a group's items: those of items i and i + 8, then i + 4, i + 2, i + 1.
template <typename Part>
GRADWIRE_HOST_DEVICE void add_up(Part (&parts)[kGroupItems]) {
  for (std::size_t half = kGroupItems / 2; half > 0; half /= 2) {
    for (std::size_t item = 0; item < half; ++item) parts[item].add(parts[item + half]);
  }
}

/// Whether a group of items adds up twice.
template <typename Work>
concept FoldsTwice = requires {
  typename Work::Refined;
};

/// What fold() does for one group where one thread runs it. begin(group, item, held) returns an item's
/// Work::Part, of 4-byte fields, and may leave in held what it needs later. Parts are added up by
/// Part::add(). Then end(group, item, held, sum) gets what is left. If there is a Work::Refined,
/// refine(group, item, held, sum) comes between them: it returns one of those, and end() gets their sum.
template <typename Work>
struct FoldGroup {
  Work work;

  GRADWIRE_HOST_DEVICE void operator()(std::size_t group) const {
    typename Work::Held held[kGroupItems];
    typename Work::Part parts[kGroupItems];
    for (std::size_t item = 0; item < kGroupItems; ++item) parts[item] = work.begin(group, item, held[item]);
    add_up(parts);
    if constexpr (FoldsTwice<Work>) {
      typename Work::Refined refined[kGroupItems];
      for (std::size_t item = 0; item < kGroupItems; ++item)
        refined[item] = work.refine(group, item, held[item], parts[0]);
      add_up(refined);
      for (std::size_t item = 0; item < kGroupItems; ++item) work.end(group, item, held[item], refined[0]);
    } else {
      for (std::size_t item = 0; item < kGroupItems; ++item) work.end(group, item, held[item], parts[0]);
    }
  }
};

/// Held by items that need nothing later.
struct Nothing {};

/// Sets a field of a DeviceReport. Items may set one field at the same time; one of their values stays.
GRADWIRE_HOST_DEVICE inline void report_value(std::uint32_t& field, std::uint32_t value) noexcept {
  cuda::atomic_ref<std::uint32_t, cuda::thread_scope_system>(field).store(value, cuda::memory_order_relaxed);
}

}  // namespace gradwire::compress
