// What module.cpp calls, and the array types that cross from Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>

namespace gradwire::python {

void bind_errors(nanobind::module_& module);
void bind_compress(nanobind::module_& module);
void bind_device_codec(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_connect(nanobind::module_& module);
void bind_facts(nanobind::module_& module);
void bind_simulation(nanobind::module_& module);

/// float32, contiguous, on the CPU; any shape. Seen by C++ as a flat span.
using Floats = nanobind::ndarray<float, nanobind::c_contig, nanobind::device::cpu>;
using ConstFloats = nanobind::ndarray<const float, nanobind::c_contig, nanobind::device::cpu>;
/// Likewise of float32, float64, float16 or bfloat16. Seen by C++ as an ArrayView.
using Numbers = nanobind::ndarray<nanobind::c_contig, nanobind::device::cpu>;
using ConstNumbers = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;
using ConstBytes =
    nanobind::ndarray<const std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

/// The same on a CUDA device.
using CudaFloats = nanobind::ndarray<float, nanobind::c_contig, nanobind::device::cuda>;
using ConstCudaFloats = nanobind::ndarray<const float, nanobind::c_contig, nanobind::device::cuda>;

/// Likewise of float32, float16 or bfloat16. Seen by C++ as an ArrayView.
using CudaNumbers = nanobind::ndarray<nanobind::c_contig, nanobind::device::cuda>;
using ConstCudaNumbers = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cuda>;

inline std::span<float> flat(const CudaFloats& array) { return {array.data(), array.size()}; }
inline std::span<const float> flat(const ConstCudaFloats& array) { return {array.data(), array.size()}; }
inline std::span<float> flat(const Floats& array) { return {array.data(), array.size()}; }
inline std::span<const float> flat(const ConstFloats& array) { return {array.data(), array.size()}; }

/// What read() returns, read without the GIL.
template <typename Read>
auto without_gil(const Read& read) {
  const nanobind::gil_scoped_release release;
  return read();
}

}  // namespace gradwire::python
