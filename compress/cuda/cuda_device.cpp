#include "compress/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "compress/cuda/cuda_codec.h"
#include "compress/cuda/cuda_devices.h"
#include "compress/cuda/cuda_error.h"
#include "compress/cuda/cuda_halves.h"

namespace gradwire::compress {
namespace {

cudaStream_t stream_of(const DeviceStream& stream) { return static_cast<cudaStream_t>(stream.handle); }

std::exception_ptr error_of(cudaError_t status) {
  try {
    expect_cuda(status, "run what was enqueued");
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

/// The runtime's callback, which it calls after an error too, as it does not call host functions.
void CUDART_CB call_next(cudaStream_t, cudaError_t status, void* next) {
  const std::unique_ptr<Device::Next> call(static_cast<Device::Next*>(next));
  (*call)(error_of(status));
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int number) : number_(number) {}

  std::string name() const override { return "cuda:" + std::to_string(number_); }
  int use() const override {
    int before = 0;
    expect_cuda(cudaGetDevice(&before), "ask for the thread's device");
    use_cuda_device(number_);
    return before;
  }
  void restore(int before) const noexcept override {
    if (before != number_ && is_in_use(before)) cudaSetDevice(before);
  }
  std::unique_ptr<DeviceCodec> twin(const CodecSpec& spec) const override { return make_cuda_codec(spec); }

  Memory allocate(std::size_t bytes) const override {
    void* memory = nullptr;
    // cudaMalloc gives null for 0 bytes, and a null address means elsewhere that there is no memory.
    expect_cuda(cudaMalloc(&memory, bytes == 0 ? 1 : bytes),
                "allocate " + std::to_string(bytes) + " bytes of " + name());
    return {static_cast<std::byte*>(memory), [](std::byte* at) { cudaFree(at); }};
  }

  Memory allocate_pinned(std::size_t bytes) const override {
    void* memory = nullptr;
    // Portable: pinned for every device of the process, not for the current one alone.
    expect_cuda(cudaHostAlloc(&memory, bytes == 0 ? 1 : bytes, cudaHostAllocPortable),
                "pin " + std::to_string(bytes) + " bytes of the host");
    return {static_cast<std::byte*>(memory), [](std::byte* at) { cudaFreeHost(at); }};
  }

  std::shared_ptr<const DeviceStream> open_stream() const override {
    cudaStream_t stream = nullptr;
    // Not blocking: else it would wait for whatever the framework does on the legacy default stream.
    expect_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
    return {new DeviceStream{number_, stream}, [](const DeviceStream* opened) {
              cudaStreamDestroy(stream_of(*opened));
              delete opened;
            }};
  }

  Mark mark(void* handle) const override {
    cudaEvent_t event = nullptr;
    expect_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "create an event");
    // Owned before it is recorded, which may throw.
    Mark mark(event, [](void* made) { cudaEventDestroy(static_cast<cudaEvent_t>(made)); });
    expect_cuda(cudaEventRecord(event, static_cast<cudaStream_t>(handle)), "record an event");
    return mark;
  }

  void wait(const DeviceStream& stream, const Mark& mark) const override {
    expect_cuda(cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(mark.get()), 0),
                "wait for an event");
  }

  void copy(const void* from, void* to, std::size_t bytes, const DeviceStream& stream) const override {
    // Default: CUDA finds out from the addresses which side each of them is on.
    expect_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "enqueue a copy");
  }

  void zero(void* at, std::size_t bytes, const DeviceStream& stream) const override {
    expect_cuda(cudaMemsetAsync(at, 0, bytes, stream_of(stream)), "enqueue zeroing");
  }

  void floats_from_halves(dense::Format format, const std::byte* halves, std::span<float> out,
                          const DeviceStream& stream) const override {
    cuda_floats_from_halves(stream, format, halves, out);
  }

  void halves_from_floats(dense::Format format, std::span<const float> values, std::byte* out,
                          const DeviceStream& stream) const override {
    cuda_halves_from_floats(stream, format, values, out);
  }

  void bf16_from_residuals(std::span<const float> values, std::byte* out,
                           const DeviceStream& stream) const override {
    cuda_bf16_from_residuals(stream, values, out);
  }

  void then(const DeviceStream& stream, Next next) const override {
    auto call = std::make_unique<Next>(std::move(next));
    expect_cuda(cudaStreamAddCallback(stream_of(stream), call_next, call.get(), 0), "enqueue a callback");
    static_cast<void>(call.release());  // call_next() owns it now
  }

  void finish(const DeviceStream& stream) const override {
    expect_cuda(cudaStreamSynchronize(stream_of(stream)), "run what was enqueued");
  }

 private:
  const int number_;
};

}  // namespace

std::shared_ptr<Device> open_cuda_device(int number) {
  const CudaDevices devices = cuda_devices();
  if (number >= 0 && number < devices.count) {
    auto device = std::make_shared<CudaDevice>(number);
    const DeviceScope usable(*device);  // throws where it is not
    return device;
  }
  const std::string reason =
      devices.count == 0 ? devices.missing : "there are " + std::to_string(devices.count) + ", from 0";
  throw std::runtime_error("cuda: cannot use device " + std::to_string(number) + ": " + reason);
}

}  // namespace gradwire::compress
