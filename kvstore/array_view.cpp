#include "kvstore/array_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "compress/dense/halves.h"

namespace gradwire::kvstore {

std::string_view name_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat64:
      return "float64";
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kBfloat16:
      return "bfloat16";
    default:
      return "float32";
  }
}

ElementType float_type(std::string_view name) {
  for (const ElementType type :
       {ElementType::kFloat32, ElementType::kFloat64, ElementType::kFloat16, ElementType::kBfloat16}) {
    if (name == name_of(type)) return type;
  }
  throw std::invalid_argument(
      fmt::format("dtype \"{}\" is unknown; expected float32, float64, float16 or bfloat16", name));
}

compress::dense::Format format_of(ElementType half) {
  return half == ElementType::kFloat16 ? compress::dense::Format::kF16 : compress::dense::Format::kBf16;
}

void copy_as_floats(ConstArrayView from, std::span<float> to) {
  if (from.is_float32()) {
    std::ranges::copy(from.floats(), to.begin());
  } else if (from.is_float64()) {
    std::ranges::transform(from.doubles(), to.begin(),
                           [](double value) { return static_cast<float>(value); });
  } else {
    compress::dense::floats_from_halves(format_of(from.type()), from.bytes(), to);
  }
}

void copy_floats(std::span<const float> from, ArrayView to) {
  if (to.is_float32()) {
    std::ranges::copy(from, to.floats().begin());
  } else if (to.is_float64()) {
    std::ranges::copy(from, to.doubles().begin());
  } else {
    compress::dense::halves_from_floats(format_of(to.type()), from, to.bytes());
  }
}

}  // namespace gradwire::kvstore
