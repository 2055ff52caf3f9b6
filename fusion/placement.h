// Placement: which server owns which part of which tensor, decided by bytes, equal on every rank.
//
// Threading: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gradwire::fusion {

struct TensorSize {
  std::uint64_t elements = 0;
  std::uint32_t element_bytes = 4;
};

/// Where the pieces of one tensor live: shard i is [begin, begin of shard i+1) on `server`. Ordered by begin;
/// the first begins at 0. Boundaries are multiples of unit_elements. A server holds at most one shard of a
/// tensor.
struct Shard {
  std::uint64_t begin = 0;
  std::uint32_t server = 0;
  bool operator==(const Shard&) const = default;
};

/// Spreads tensors over servers: those of at least shard_bound elements are cut over all servers in runs of
/// whole units that differ by at most one unit, the others go whole, in the order given, to the server with
/// the fewest bytes so far (ties: lowest index). `load` carries the bytes already placed, and is updated.
/// Calling once with all tensors or once per tensor gives the same result.
///
/// The loads end within max(their spread at the start, the largest whole tensor, the largest codec unit)
/// bytes of each other. Throws std::invalid_argument if servers or unit_elements is 0, or load.size() !=
/// servers.
std::vector<std::vector<Shard>> place(std::span<const TensorSize> tensors, std::uint32_t servers,
                                      std::uint64_t unit_elements, std::uint64_t shard_bound,
                                      std::vector<std::uint64_t>& load);

}  // namespace gradwire::fusion
