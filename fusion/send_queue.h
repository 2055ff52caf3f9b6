// SendQueue decides what is sent next: highest priority first, first come first served among equals. It
// never has more than `credit` bytes in flight to any one destination, so that an urgent piece never waits
// behind a long queue. The same class orders a worker's pushes, a server's replies and the simulator's.
//
// Nothing waits for ever. The piece that has waited longest for a destination takes its turn when pieces
// that had overtaken it before overtake it by another kPatienceBytes. In synchronous training a piece
// overtakes another once a step, so priorities alone decide.
//
// Threading: none of its own; the owner's thread calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <unordered_set>
#include <vector>

namespace gradwire::fusion {

inline constexpr std::uint64_t kPatienceBytes = 16ULL << 20;

struct SendItem {
  std::uint64_t id = 0;           ///< the owner's name for the piece
  std::int32_t priority = 0;      ///< higher is sooner
  std::uint32_t destination = 0;  ///< 0 .. destinations-1
  std::uint64_t bytes = 0;        ///< what it will occupy of the credit
  std::uint64_t piece = 0;        ///< names what is sent: equal for the same part of a key in every step
  bool can_be_held = false;       ///< hold() concerns it
  bool operator==(const SendItem&) const = default;
};

/// Misuse (no destination, no credit, a destination that does not exist, giving back more than was taken)
/// throws std::invalid_argument and changes nothing.
class SendQueue {
 public:
  /// Requires destinations >= 1, credit_bytes >= 1.
  SendQueue(std::uint32_t destinations, std::uint64_t credit_bytes);

  void push(const SendItem& item);

  /// Takes the next item whose destination has credit: an item is let through while the destination's bytes
  /// in flight are below credit, so one larger than the whole credit still goes, alone. Among equals of
  /// priority the destination served least recently goes first, so that all links are busy. Empty: nothing
  /// may go now. Costs one look at each destination.
  std::optional<SendItem> pop();

  /// Returns the credit of a popped item.
  void release(std::uint32_t destination, std::uint64_t bytes);

  /// Lets nothing go to a destination that can be held, unless it is more urgent than the last such piece; or
  /// again.
  void hold(std::uint32_t destination, bool is_held);

  /// Destination that pop() favours first, then those after it; rank r of a job starts at r, or all would hit
  /// one server at once.
  void start_at(std::uint32_t destination);

  /// Says whether nothing waits (bytes may still be in flight).
  bool empty() const noexcept;
  std::uint64_t in_flight_bytes(std::uint32_t destination) const;

 private:
  struct Waiting {
    SendItem item;
    std::uint64_t since = 0;  // clock_ of its push
  };
  using ByPriority = std::multimap<std::int32_t, Waiting, std::greater<>>;  // equal keys keep insertion order
  struct Lane {
    ByPriority waiting;
    std::map<std::uint64_t, ByPriority::iterator> by_age;
    std::unordered_set<std::uint64_t> overtook;  // pieces that went before the one that has waited longest
    std::uint64_t overtaken_bytes = 0;           // of those, when they did it again
    std::uint64_t in_flight_bytes = 0;
    std::uint64_t served_at = 0;  // clock_ of its last pop
    bool is_held = false;
    std::int32_t last_priority = std::numeric_limits<std::int32_t>::max();  // of the last that can be held

    ByPriority::iterator next();
    bool holds(const SendItem& item) const {
      return is_held && item.can_be_held && item.priority <= last_priority;
    }
    SendItem take_next();
  };
  void require_destination(std::uint32_t destination) const;

  std::vector<Lane> lanes_;
  std::uint64_t credit_bytes_;
  std::uint64_t clock_ = 0;
  std::size_t waiting_count_ = 0;
};

}  // namespace gradwire::fusion
