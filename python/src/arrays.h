// Arrays as Python's callers give them: NumPy's, PyTorch's or anything else that speaks DLPack. They are
// looked at where they lie, never copied; what a call cannot use is said in words.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <span>

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

}  // namespace gradwire::python
