#include "transport/collective.h"

namespace gradwire::transport {

std::size_t bytes_of(ElementType type) noexcept {
  switch (type) {
    case ElementType::kInt8:
      return 1;
    case ElementType::kFloat16:
    case ElementType::kBfloat16:
    case ElementType::kInt16:
      return 2;
    case ElementType::kFloat32:
    case ElementType::kInt32:
      return 4;
    case ElementType::kFloat64:
      return 8;
  }
  return 0;
}

}  // namespace gradwire::transport
