// The Backend (thrust_items.h) that puts work items on a CUDA stream. For .cu files.
#pragma once

#include <cuda_runtime_api.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/system_error.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "compress/cuda/cuda_error.h"
#include "compress/device/device_codec.h"
#include "compress/device/thrust_items.h"

namespace gradwire::compress {

// Whole warps: the two groups of a warp shuffle together.
inline constexpr std::size_t kFoldThreads = 128;

/// Adds to a part that of the thread whose number differs in these bits. Both get the same sum.
template <typename Part>
__device__ void add_other(Part& part, unsigned bits) {
  constexpr std::size_t kWords = sizeof(Part) / sizeof(std::uint32_t);
  static_assert(sizeof(Part) == kWords * sizeof(std::uint32_t));
  std::uint32_t words[kWords];
  memcpy(words, &part, sizeof part);
  for (std::uint32_t& word : words) word = __shfl_xor_sync(~0u, word, bits);
  Part other;
  memcpy(&other, words, sizeof other);
  // Addition commutes, so a + b here and b + a in the other thread have the same bits.
  part.add(other);
}

/// As add_up(), over the threads of half a warp, which all get the sum.
template <typename Part>
__device__ void add_up_group(Part& part) {
  // Differences of 8, 4, 2 and 1 stay within half a warp, and are the order of add_up() on the host.
  for (unsigned half = kGroupItems / 2; half > 0; half /= 2) add_other(part, half);
}

/// As FoldGroup, half a warp a group.
template <typename Work>
__global__ void __launch_bounds__(kFoldThreads) fold_groups(std::size_t groups, const Work work) {
  const std::size_t thread = blockIdx.x * kFoldThreads + threadIdx.x;
  const std::size_t group = thread / kGroupItems;
  const std::size_t item = thread % kGroupItems;
  typename Work::Held held;
  typename Work::Part part{};
  // Threads beyond the last group add zeros and do not return: a shuffle waits for every thread of its mask.
  if (group < groups) part = work.begin(group, item, held);
  add_up_group(part);
  if constexpr (FoldsTwice<Work>) {
    typename Work::Refined refined{};
    if (group < groups) refined = work.refine(group, item, held, part);
    add_up_group(refined);
    if (group < groups) work.end(group, item, held, refined);
  } else {
    if (group < groups) work.end(group, item, held, part);
  }
}

class CudaBackend {
 public:
  /// Throws std::invalid_argument unless the stream's device is the calling thread's.
  explicit CudaBackend(const DeviceStream& stream)
      : device_(stream.device), stream_(static_cast<cudaStream_t>(stream.handle)) {
    int current = 0;
    expect_cuda(cudaGetDevice(&current), "ask for the thread's device");
    if (current == device_) return;
    throw std::invalid_argument("cuda: the stream belongs to device " + std::to_string(device_) +
                                ", the calling thread works with device " + std::to_string(current) +
                                "; call use_cuda_device(" + std::to_string(device_) + ") in it first");
  }

  /// par_nosync: the call returns once the kernel is enqueued.
  template <typename Work>
  void each(std::size_t items, const Work& work) const {
    try {
      for_each_item(thrust::cuda::par_nosync.on(stream_), items, work);
    } catch (const thrust::system_error& error) {
      throw std::runtime_error("cuda: device " + std::to_string(device_) +
                               " refused a kernel: " + error.what());
    }
  }

  template <typename Work>
  void fold(std::size_t groups, const Work& work) const {
    const std::size_t blocks = (groups * kGroupItems + kFoldThreads - 1) / kFoldThreads;
    fold_groups<<<static_cast<unsigned>(blocks), kFoldThreads, 0, stream_>>>(groups, work);
    expect_cuda(cudaGetLastError(), "take a kernel");
  }

 private:
  int device_;
  cudaStream_t stream_;
};

}  // namespace gradwire::compress
