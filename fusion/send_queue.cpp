#include "fusion/send_queue.h"

#include <stdexcept>
#include <string>

namespace gradwire::fusion {

SendQueue::SendQueue(std::uint32_t destinations, std::uint64_t credit_bytes)
    : lanes_(destinations), credit_bytes_(credit_bytes) {
  if (destinations == 0 || credit_bytes == 0) {
    throw std::invalid_argument("send queue: destinations=" + std::to_string(destinations) +
                                ", credit_bytes=" + std::to_string(credit_bytes) +
                                "; expected both to be at least 1");
  }
  start_at(0);
}

void SendQueue::push(const SendItem& item) {
  require_destination(item.destination);
  Lane& lane = lanes_[item.destination];
  const std::uint64_t since = clock_++;
  // Two orders of one list: by priority, and by age for the piece that has waited too long. Iterators of a
  // multimap stay valid while others come and go.
  lane.by_age.emplace(since, lane.waiting.emplace(item.priority, Waiting{item, since}));
  ++waiting_count_;
}

std::optional<SendItem> SendQueue::pop() {
  Lane* best = nullptr;
  for (Lane& lane : lanes_) {
    if (lane.waiting.empty() || lane.in_flight_bytes >= credit_bytes_) continue;
    // Only the next piece is asked: one behind it is less urgent, and would overtake it.
    if (lane.holds(lane.next()->second.item)) continue;
    const std::int32_t priority = lane.next()->first;
    // A piece that goes because of its age is compared by its own priority: it takes no turn from a more
    // urgent one to another destination.
    const std::int32_t best_priority = best ? best->next()->first : priority;
    if (!best || priority > best_priority ||
        (priority == best_priority && lane.served_at < best->served_at)) {
      best = &lane;
    }
  }
  if (!best) return std::nullopt;
  const SendItem item = best->take_next();
  // May go beyond the credit by one piece: else one that is larger than the credit would wait for ever.
  best->in_flight_bytes += item.bytes;
  best->served_at = clock_++;
  // While the destination is held, a piece that is more urgent than this one still goes.
  if (item.can_be_held) best->last_priority = item.priority;
  --waiting_count_;
  return item;
}

SendQueue::ByPriority::iterator SendQueue::Lane::next() {
  // Bytes and not a number of pieces: the wait is of the wire's time.
  return overtaken_bytes < kPatienceBytes ? waiting.begin() : by_age.begin()->second;
}

SendItem SendQueue::Lane::take_next() {
  const auto taken = next();
  const auto [item, since] = taken->second;
  const bool has_waited_longest = since == by_age.begin()->first;
  waiting.erase(taken);
  by_age.erase(since);
  // Another piece waits longest from now on, and nothing has overtaken that one yet.
  if (has_waited_longest) {
    overtook.clear();
    overtaken_bytes = 0;
  } else if (!overtook.insert(item.piece).second) {
    // Overtaking once is what priorities are for. Counted from the second time on: the same part of another
    // step.
    overtaken_bytes += item.bytes;
  }
  return item;
}

void SendQueue::release(std::uint32_t destination, std::uint64_t bytes) {
  require_destination(destination);
  std::uint64_t& in_flight_bytes = lanes_[destination].in_flight_bytes;
  // Unsigned: one release too many would give endless credit.
  if (bytes > in_flight_bytes) {
    throw std::invalid_argument("send queue: destination " + std::to_string(destination) + " gives back " +
                                std::to_string(bytes) + " bytes; expected at most the " +
                                std::to_string(in_flight_bytes) + " in flight");
  }
  in_flight_bytes -= bytes;
}

void SendQueue::hold(std::uint32_t destination, bool is_held) {
  require_destination(destination);
  lanes_[destination].is_held = is_held;
}

void SendQueue::start_at(std::uint32_t destination) {
  require_destination(destination);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[(destination + i) % lanes_.size()].served_at = clock_++;
  }
}

bool SendQueue::empty() const noexcept { return waiting_count_ == 0; }

std::uint64_t SendQueue::in_flight_bytes(std::uint32_t destination) const {
  require_destination(destination);
  return lanes_[destination].in_flight_bytes;
}

void SendQueue::require_destination(std::uint32_t destination) const {
  if (destination < lanes_.size()) return;
  throw std::invalid_argument("send queue: destination " + std::to_string(destination) +
                              " does not exist; expected 0 to " + std::to_string(lanes_.size() - 1));
}

}  // namespace gradwire::fusion
