// Partition: the piece of a tensor that is encoded, sent and answered as one. Whole codec units, except at
// the end.
//
// Threading: pure functions.
#pragma once

#include <cstdint>
#include <vector>

namespace gradwire::fusion {

struct Partition {
  std::uint64_t offset = 0;  ///< elements from the start of the tensor
  std::uint64_t count = 0;   ///< elements
  bool operator==(const Partition&) const = default;
};

/// Cuts a tensor into partitions, in order and without a gap. Each is a whole number of units, as many as fit
/// into max_elements but at least one; the last may be shorter. Throws std::invalid_argument if elements or
/// unit_elements is 0.
std::vector<Partition> cut(std::uint64_t elements, std::uint64_t unit_elements, std::uint64_t max_elements);

}  // namespace gradwire::fusion
