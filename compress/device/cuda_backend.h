// The Backend (thrust_items.h) that puts work items on a CUDA stream. For .cu files.
#pragma once

#include <cuda_runtime_api.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/system_error.h>

#include <cstddef>
#include <stdexcept>
#include <string>

#include "compress/device/cuda_error.h"
#include "compress/device/device_codec.h"
#include "compress/device/thrust_items.h"

namespace gradwire::compress {

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

 private:
  int device_;
  cudaStream_t stream_;
};

}  // namespace gradwire::compress
