#include "fusion/push_window.h"

#include <algorithm>

namespace gradwire::fusion {

void PushWindow::sent(std::uint32_t destination, std::uint64_t bytes, Time now) {
  Lane& lane = lanes_[destination];
  lane.unanswered.push_back({bytes, bytes, now});
  lane.unanswered_bytes += bytes;
  if (bytes > 2 * lane.largest) lane.fastest.reset();  // answers to small pushes say little of large ones
  lane.largest = std::max(lane.largest, bytes);
}

void PushWindow::answered(std::uint32_t destination, std::uint64_t bytes, Time now) {
  // Also where the answer is to nothing that is listed (forget): it shows that the server answers.
  lanes_[destination].last_answer = now;
  take(lanes_[destination], bytes, now);
}

void PushWindow::take(Lane& lane, std::uint64_t bytes, std::optional<Time> answered_at) {
  while (bytes > 0 && !lane.unanswered.empty()) {
    Sent& oldest = lane.unanswered.front();
    const std::uint64_t taken = std::min(bytes, oldest.unanswered_bytes);
    bytes -= taken;
    oldest.unanswered_bytes -= taken;
    lane.unanswered_bytes -= taken;
    if (oldest.unanswered_bytes > 0) return;
    // A small push is answered faster, and would make the patience with large ones too short.
    if (answered_at && 2 * oldest.bytes >= lane.largest)
      lane.fastest = std::min(lane.fastest.value_or(Duration::max()), *answered_at - oldest.at);
    lane.unanswered.pop_front();
  }
}

std::optional<PushWindow::Time> PushWindow::closed_until(std::uint32_t destination, Time now) {
  Lane& lane = lanes_[destination];
  // All three, or the server has no reason to wait for others: an answer's time is known, and enough is
  // without one.
  const bool has_lead =
      lane.fastest && lane.unanswered_bytes >= lane.least_bytes && lane.unanswered.size() >= kLeastPushes;
  const Duration patience = 2 * lane.fastest.value_or(Duration::zero()) + kSlack;
  if (!has_lead || now - lane.unanswered.front().at <= patience) {
    lane.closed_at.reset();
    return std::nullopt;
  }
  // Without recent answers the others compute, and the link is free: this worker may go on.
  if (!lane.closed_at && now - lane.last_answer < patience) lane.closed_at = now;
  if (!lane.closed_at) return std::nullopt;
  if (now - *lane.closed_at < patience) return *lane.closed_at + patience;
  // The pause has brought no answer, so this worker's lead was not what the others waited for.
  lane.closed_at.reset();
  lane.least_bytes = 2 * lane.unanswered_bytes;
  return std::nullopt;
}

}  // namespace gradwire::fusion
