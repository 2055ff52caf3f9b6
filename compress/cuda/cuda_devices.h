// The CUDA of this build, and the CUDA devices of this machine.
//
// Threading: all functions may be called from any thread.
#pragma once

#include <string>

namespace gradwire::compress {

struct CudaDevices {
  int count = 0;
  std::string missing;  ///< why there is none; empty where count > 0
};

/// Asks the driver, which is looked for at run time: a program that holds CUDA code starts without one.
CudaDevices cuda_devices();

/// Makes a device the calling thread's, as every thread that enqueues work on it needs. Throws
/// std::runtime_error with the reason where it cannot be used.
void use_cuda_device(int device);
/// Whether this process has used the device. To use one takes hundreds of megabytes there.
bool is_in_use(int device) noexcept;

}  // namespace gradwire::compress
