// GRADWIRE_HOST_DEVICE marks functions that kernels call, too, so that CPU and GPU run the same lines.
// constexpr functions need no mark: kernels are compiled with --expt-relaxed-constexpr. A constant has no
// address on a device: std::min() and similar functions take it as a value, std::uint32_t{kConstant}.
#pragma once

#ifdef __CUDACC__
#define GRADWIRE_HOST_DEVICE __host__ __device__
#else
#define GRADWIRE_HOST_DEVICE
#endif

/// Goes before a loop of a constant number of turns whose arrays are to stay in registers of a device.
#ifdef __CUDA_ARCH__
#define GRADWIRE_UNROLL _Pragma("unroll")
#else
#define GRADWIRE_UNROLL
#endif
