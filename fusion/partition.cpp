#include "fusion/partition.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>

namespace gradwire::fusion {

std::vector<Partition> cut(std::uint64_t elements, std::uint64_t unit_elements, std::uint64_t max_elements) {
  if (elements == 0 || unit_elements == 0) {
    throw std::invalid_argument("partition: elements=" + std::to_string(elements) + ", unit_elements=" +
                                std::to_string(unit_elements) + "; expected both to be at least 1");
  }
  // Whole codec units, at least one, even where the limit is less: a unit has its scale in one payload.
  const std::uint64_t step = std::max<std::uint64_t>(1, max_elements / unit_elements) * unit_elements;
  std::vector<Partition> partitions;
  partitions.reserve((elements - 1) / step + 1);
  for (std::uint64_t left = elements; left > 0; left -= partitions.back().count) {
    partitions.push_back({elements - left, std::min(step, left)});
  }
  return partitions;
}

std::uint64_t shortest_piece(std::uint64_t unit_elements, std::uint64_t unit_payload_bytes) {
  constexpr std::uint64_t kWorthAFrame = std::uint64_t{64} << 10;  // bytes
  return unit_payload_bytes < kWorthAFrame ? 2 * unit_elements : unit_elements;
}

std::vector<Partition> cut_owned(std::uint64_t elements, std::uint64_t unit_elements,
                                 const OwnedCut& limits) {
  const std::uint64_t longest = std::max(limits.shortest_elements, elements / limits.least_pieces);
  return cut(elements, unit_elements, std::min(limits.max_elements, longest));
}

std::vector<std::size_t> in_turns(std::span<const std::uint32_t> owners, std::uint32_t first) {
  std::map<std::uint32_t, std::size_t> seen;
  std::vector<std::size_t> turn(owners.size());
  for (std::size_t i = 0; i < owners.size(); ++i) turn[i] = seen[owners[i]]++;
  std::vector<std::size_t> order(owners.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // One piece of each owner in turn, so that all links carry something while the codec works. Ranks begin at
  // different owners (first), or all would hit one of them at once.
  std::ranges::stable_sort(order, {}, [&](std::size_t i) {
    const bool wraps = owners[i] < first;
    return std::tuple(turn[i], wraps, owners[i]);
  });
  return order;
}

}  // namespace gradwire::fusion
