// Partition: the piece of a tensor that is encoded, sent and answered as one. Whole codec units, except at
// the end.
//
// Threading: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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

/// How what one server owns of a tensor is cut.
struct OwnedCut {
  std::uint64_t max_elements = std::uint64_t{1} << 18;
  /// Into so many pieces, so that its push and its reply overlap on the wire;
  std::uint64_t least_pieces = 4;
  /// but into none shorter (shortest_piece()).
  std::uint64_t shortest_elements = std::uint64_t{1} << 16;
};

/// The least elements of a piece that is worth a frame. A frame costs the CPU some 50 microseconds on its way
/// there and back, in which 10 Gbit/s carry 64 KiB: one unit where its payload is at least that, two where it
/// is less. Requires unit_elements >= 1.
std::uint64_t shortest_piece(std::uint64_t unit_elements, std::uint64_t unit_payload_bytes);

/// As cut(), of what one server owns.
std::vector<Partition> cut_owned(std::uint64_t elements, std::uint64_t unit_elements, const OwnedCut& limits);

/// The order in which to encode pieces that go to owners[i]: the first piece of every owner, then the second
/// of every owner, and so on, so that all owners have work from the start; each turn begins with owner
/// `first`, the others follow upwards and around. Indices into owners; pieces of one owner keep their order.
std::vector<std::size_t> in_turns(std::span<const std::uint32_t> owners, std::uint32_t first);

}  // namespace gradwire::fusion
