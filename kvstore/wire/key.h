// Keys: what a rank declares, how ranks agree on it, and where each key's partitions live.
//
// Threading: values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fusion/partition.h"

namespace gradwire::kvstore {

/// Index of a key in the order in which an Engine's keys were agreed; also the key on the wire.
using KeyId = std::uint64_t;

/// What a rank says about a key: the same on every rank, or nobody goes on.
struct KeySpec {
  std::string name;
  std::vector<std::uint64_t> shape;  ///< elements per dimension; empty for a scalar
  std::string dtype = "float32";
  bool is_float64() const { return dtype == "float64"; }
  bool operator==(const KeySpec&) const = default;

  /// Throws std::invalid_argument naming the key where they are more than fit in 2^63 bytes of float32.
  std::uint64_t elements() const;
};

/// A run of a key's elements that one server owns and that travels as one.
struct Part {
  std::uint32_t server = 0;
  std::uint64_t offset = 0;  ///< elements
  std::uint64_t count = 0;   ///< elements
  bool operator==(const Part&) const = default;
};

/// Writes keys as the text that ranks exchange, and reads it. One line a key, sorted by name, so that ranks
/// may list one call's keys in any order.
std::string write_keys(std::span<const KeySpec> keys);
std::vector<KeySpec> read_keys(const std::string& text);

/// Throws std::invalid_argument naming the first difference between what ranks wrote, with the same text on
/// every rank.
void require_same_keys(std::span<const std::string> texts_by_rank);

/// Compares settings written as "name=value" lines in the same way; `what` names them in the error.
void require_same_settings(const std::string& what, std::span<const std::string> texts_by_rank);

/// Decides the home of every partition of `keys`, spread by bytes over `servers`; `cut` says how what one
/// server owns of a key is cut, `load` carries the bytes placed so far and is updated. Pure, so every rank
/// computes the same.
std::vector<std::vector<Part>> place_keys(std::span<const KeySpec> keys, std::uint32_t servers,
                                          const fusion::OwnedCut& cut, std::uint64_t shard_bound_elements,
                                          std::vector<std::uint64_t>& load);

}  // namespace gradwire::kvstore
