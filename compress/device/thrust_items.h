// Work items: the algorithms of the device codecs are written once, as functors of an item's index, and run
// under any Thrust execution policy: a CUDA stream, or the host in tests. No item reads what another of the
// same run writes, so their order does not matter.
//
// A Backend is made from a DeviceStream and has each(items, work): it runs work(0), work(1), ... work(items -
// 1) in any order, after all that was enqueued on the stream before.
#pragma once

#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>

#include <cstddef>
#include <cstdint>
#include <cuda/atomic>

#include "compress/device/device_codec.h"
#include "compress/payload/host_device.h"

namespace gradwire::compress {

/// Runs the items under a policy; returns when they are enqueued.
template <typename Policy, typename Work>
void for_each_item(const Policy& policy, std::size_t items, const Work& work) {
  thrust::for_each_n(policy, thrust::counting_iterator<std::size_t>(0), items, work);
}

/// Sets a field of a DeviceReport. Items may set one field at the same time; one of their values stays.
GRADWIRE_HOST_DEVICE inline void report_value(std::uint32_t& field, std::uint32_t value) noexcept {
  cuda::atomic_ref<std::uint32_t, cuda::thread_scope_system>(field).store(value, cuda::memory_order_relaxed);
}

}  // namespace gradwire::compress
