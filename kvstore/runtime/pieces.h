// Pieces limits how much of the first values is in flight at once. One wait for each key would take a round
// trip each. All together would queue for so long that their senders repeat them.
//
// Threading: pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace gradwire::kvstore {

inline constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

/// Runs of what fits in a piece together, in order; what does not fit in one is a run of its own.
/// bytes_of(thing): what it takes there.
template <typename Thing, typename BytesOf>
std::vector<std::span<const Thing>> in_pieces(std::span<const Thing> things, const BytesOf& bytes_of) {
  std::vector<std::span<const Thing>> runs;
  std::size_t begin = 0, bytes = 0;
  for (std::size_t i = 0; i < things.size(); ++i) {
    const std::size_t more = bytes_of(things[i]);
    if (i > begin && bytes + more > kPieceBytes) {
      runs.push_back(things.subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += more;
  }
  if (begin < things.size()) runs.push_back(things.subspan(begin));
  return runs;
}

}  // namespace gradwire::kvstore
