// gradwire-cuda-codec: the CUDA twins, timed by events on their stream.
#include <cuda_runtime_api.h>

#include <memory>
#include <stdexcept>

#include "compress/cuda/cuda_device.h"
#include "compress/cuda/cuda_devices.h"
#include "compress/cuda/cuda_error.h"
#include "experiments/cuda_codec/codec_bench.h"

namespace gradwire::compress {
namespace {

/// Owns two events.
class CudaStopwatch {
 public:
  CudaStopwatch() {
    expect_cuda(cudaEventCreate(&begin_), "create an event");
    expect_cuda(cudaEventCreate(&end_), "create an event");
  }
  ~CudaStopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  CudaStopwatch(const CudaStopwatch&) = delete;
  CudaStopwatch& operator=(const CudaStopwatch&) = delete;

  double seconds(const DeviceStream& stream, const std::function<void()>& work) const {
    auto* const handle = static_cast<cudaStream_t>(stream.handle);
    expect_cuda(cudaEventRecord(begin_, handle), "record an event");
    work();
    expect_cuda(cudaEventRecord(end_, handle), "record an event");
    expect_cuda(cudaEventSynchronize(end_), "wait for the work");
    float milliseconds = 0;
    expect_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "read the events");
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

TimedDevice open() {
  if (const std::string missing = cuda_devices().missing; !missing.empty()) throw std::runtime_error(missing);
  use_cuda_device(0);
  cudaDeviceProp properties;
  expect_cuda(cudaGetDeviceProperties(&properties, 0), "ask for the device's name");
  const auto stopwatch =
      std::make_shared<CudaStopwatch>();  // owner: the function below, wherever it is copied
  return {open_cuda_device(0), properties.name,
          [stopwatch](const auto& stream, const auto& work) { return stopwatch->seconds(stream, work); }};
}

}  // namespace
}  // namespace gradwire::compress

int main(int argc, char** argv) {
  return gradwire::compress::bench_codecs(argc, argv, "gradwire-cuda-codec", gradwire::compress::open);
}
