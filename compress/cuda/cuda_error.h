// Turns a failed call of the CUDA runtime into an exception that says what was tried.
//
// Threading: all functions are pure.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace gradwire::compress {

/// Throws std::runtime_error unless status is cudaSuccess. `what` was tried: "use device 3".
void expect_cuda(cudaError_t status, std::string_view what);

}  // namespace gradwire::compress
