#include "python/src/arrays.h"

#include <cstdint>
#include <stdexcept>
#include <string>

namespace gradwire::python {

namespace nb = nanobind;

namespace {

std::string name_of(const nb::dlpack::dtype& type) {
  using Code = nb::dlpack::dtype_code;
  const std::string bits = std::to_string(type.bits);
  switch (static_cast<Code>(type.code)) {
    case Code::Int:
      return "int" + bits;
    case Code::UInt:
      return "uint" + bits;
    case Code::Float:
      return "float" + bits;
    case Code::Bfloat:
      return "bfloat" + bits;
    case Code::Complex:
      return "complex" + bits;
    case Code::Bool:
      return "bool";
    default:
      return "a type that DLPack numbers " + std::to_string(type.code) + " of " + bits + " bits";
  }
}

/// Memory that the host reads where it lies.
bool is_on_host(int device_type) {
  return device_type == nb::device::cpu::value || device_type == nb::device::cuda_host::value ||
         device_type == nb::device::cuda_managed::value;
}

template <typename Array>
bool is_contiguous(const Array& array) {
  std::int64_t expected = 1;
  for (std::size_t d = array.ndim(); d-- > 0;) {
    if (array.shape(d) == 0) return true;
    if (array.shape(d) > 1 && array.stride(d) != expected) return false;
    expected *= static_cast<std::int64_t>(array.shape(d));
  }
  return true;
}

template <typename Array>
void expect(const Array& array, const nb::dlpack::dtype& type, const char* call, const char* argument) {
  const std::string what = std::string(call) + ": " + argument;
  if (!is_on_host(array.device_type())) {
    throw std::invalid_argument(what + " lies on a device (DLPack's type " +
                                std::to_string(array.device_type()) + ", number " +
                                std::to_string(array.device_id()) +
                                "), expected the host's memory; copy it there first (PyTorch: .cpu())");
  }
  if (array.dtype() != type || type.lanes != 1) {
    throw std::invalid_argument(what + " has dtype " + name_of(array.dtype()) + ", expected " +
                                name_of(type) + "; convert it first (NumPy: .astype, PyTorch: .to)");
  }
  if (!is_contiguous(array)) {
    throw std::invalid_argument(what +
                                " is not contiguous; make it so first (NumPy: ascontiguousarray, PyTorch: "
                                ".contiguous())");
  }
}

kvstore::ElementType element_type(const nb::dlpack::dtype& type, const char* call, const char* argument) {
  using kvstore::ElementType;
  if (type == nb::dtype<float>()) return ElementType::kFloat32;
  if (type == nb::dtype<double>()) return ElementType::kFloat64;
  const auto code = static_cast<nb::dlpack::dtype_code>(type.code);
  if (type.bits == 16 && type.lanes == 1) {
    if (code == nb::dlpack::dtype_code::Float) return ElementType::kFloat16;
    if (code == nb::dlpack::dtype_code::Bfloat) return ElementType::kBfloat16;
  }
  throw std::invalid_argument(std::string(call) + ": " + argument + " has dtype " + name_of(type) +
                              ", expected float32, float64, float16 or bfloat16; convert it first (NumPy: "
                              ".astype, PyTorch: .to)");
}

template <typename View, typename Array>
View view_of(const Array& array, const char* call, const char* argument) {
  using Bytes = decltype(View().bytes());
  return {element_type(array.dtype(), call, argument),
          {static_cast<typename Bytes::pointer>(array.data()), array.nbytes()}};
}

}  // namespace

std::span<const float> floats_of(const GivenArray& array, const char* call, const char* argument) {
  expect(array, nb::dtype<float>(), call, argument);
  return {static_cast<const float*>(array.data()), array.size()};
}

std::span<float> floats_of(const GivenRoom& array, const char* call, const char* argument) {
  expect(array, nb::dtype<float>(), call, argument);
  return {static_cast<float*>(array.data()), array.size()};
}

std::span<const std::byte> bytes_of(const GivenArray& array, const char* call, const char* argument) {
  expect(array, nb::dtype<std::uint8_t>(), call, argument);
  return {static_cast<const std::byte*>(array.data()), array.size()};
}

std::span<std::byte> bytes_of(const GivenRoom& array, const char* call, const char* argument) {
  expect(array, nb::dtype<std::uint8_t>(), call, argument);
  return {static_cast<std::byte*>(array.data()), array.size()};
}

kvstore::ConstArrayView numbers_of(const ConstNumbers& array, const char* call, const char* argument) {
  return view_of<kvstore::ConstArrayView>(array, call, argument);
}

kvstore::ArrayView numbers_of(const Numbers& array, const char* call, const char* argument) {
  return view_of<kvstore::ArrayView>(array, call, argument);
}

kvstore::ConstArrayView numbers_of(const ConstCudaNumbers& array, const char* call, const char* argument) {
  return view_of<kvstore::ConstArrayView>(array, call, argument);
}

kvstore::ArrayView numbers_of(const CudaNumbers& array, const char* call, const char* argument) {
  return view_of<kvstore::ArrayView>(array, call, argument);
}

}  // namespace gradwire::python
