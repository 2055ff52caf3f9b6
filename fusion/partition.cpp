#include "fusion/partition.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace gradwire::fusion {

std::vector<Partition> cut(std::uint64_t elements, std::uint64_t unit_elements, std::uint64_t max_elements) {
  if (elements == 0 || unit_elements == 0) {
    throw std::invalid_argument("partition: elements=" + std::to_string(elements) + ", unit_elements=" +
                                std::to_string(unit_elements) + "; expected both to be at least 1");
  }
  const std::uint64_t step = std::max<std::uint64_t>(1, max_elements / unit_elements) * unit_elements;
  std::vector<Partition> partitions;
  partitions.reserve((elements - 1) / step + 1);
  for (std::uint64_t left = elements; left > 0; left -= partitions.back().count) {
    partitions.push_back({elements - left, std::min(step, left)});
  }
  return partitions;
}

}  // namespace gradwire::fusion
