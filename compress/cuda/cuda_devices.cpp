#include "compress/cuda/cuda_devices.h"

#include <dlfcn.h>

#include <stdexcept>

#include "compress/cuda/cuda_error.h"

namespace gradwire::compress {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// Why the driver counted no device.
std::string reason(cudaError_t status) {
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver == 0) return "no NVIDIA driver was found on this machine";
  // A driver runs all minor versions of its major one (CUDA's minor version compatibility), so only that
  // counts.
  if (driver < CUDART_VERSION / 1000 * 1000) {
    return "the NVIDIA driver supports CUDA " + version_text(driver) + ", this build needs " +
           version_text(CUDART_VERSION / 1000 * 1000) + "; update the driver";
  }
  return std::string("the NVIDIA driver says: ") + cudaGetErrorString(status);
}

}  // namespace

void expect_cuda(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next call would be blamed for it
  throw std::runtime_error("cuda: cannot " + std::string(what) + ": " + cudaGetErrorString(status) + " (" +
                           cudaGetErrorName(status) + ")");
}

CudaDevices cuda_devices() {
  CudaDevices devices;
  const cudaError_t status = cudaGetDeviceCount(&devices.count);
  if (status == cudaSuccess && devices.count > 0) return devices;
  // The error is reported by the text, and must not be the next call's.
  cudaGetLastError();
  return {0, status == cudaSuccess ? "the NVIDIA driver lists no device" : reason(status)};
}

void use_cuda_device(int device) {
  expect_cuda(cudaSetDevice(device), "use device " + std::to_string(device));
}

bool is_in_use(int device) noexcept {
  // Of the driver, which the runtime has loaded: the runtime itself does not tell.
  using GetState = int (*)(int device, unsigned* flags, int* active);
  static const auto get_state = [] {
    void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return reinterpret_cast<GetState>(driver == nullptr ? nullptr
                                                        : dlsym(driver, "cuDevicePrimaryCtxGetState"));
  }();
  unsigned flags = 0;
  int active = 0;
  return get_state != nullptr && get_state(device, &flags, &active) == 0 && active != 0;
}

}  // namespace gradwire::compress
