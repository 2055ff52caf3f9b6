#include "kvstore/leftover.h"

#include <algorithm>

namespace gradwire::kvstore {

bool is_all_sent(std::span<const float> residual) {
  return std::ranges::all_of(residual, [](float value) { return value == 0; });
}

}  // namespace gradwire::kvstore
