// Arrays as Python's callers give them: NumPy's, PyTorch's or anything else that speaks DLPack. They are
// looked at where they lie, never copied; what a call cannot use is said in words.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <span>

#include "kvstore/array_view.h"
#include "python/src/bindings.h"

namespace gradwire::python {

/// Any array, to read or to write.
using GivenArray = nanobind::ndarray<nanobind::ro>;
using GivenRoom = nanobind::ndarray<>;

// `call` and `argument` name the array in errors: "encode", "grad". All throw std::invalid_argument where it
// has another dtype than is expected, lies on a device, or is not contiguous.

std::span<const float> floats_of(const GivenArray& array, const char* call, const char* argument);
std::span<float> floats_of(const GivenRoom& array, const char* call, const char* argument);
std::span<const std::byte> bytes_of(const GivenArray& array, const char* call, const char* argument);
std::span<std::byte> bytes_of(const GivenRoom& array, const char* call, const char* argument);

/// Of float32, float64, float16 or bfloat16.
kvstore::ConstArrayView numbers_of(const ConstNumbers& array, const char* call, const char* argument);
kvstore::ArrayView numbers_of(const Numbers& array, const char* call, const char* argument);
kvstore::ConstArrayView numbers_of(const ConstCudaNumbers& array, const char* call, const char* argument);
kvstore::ArrayView numbers_of(const CudaNumbers& array, const char* call, const char* argument);

}  // namespace gradwire::python
