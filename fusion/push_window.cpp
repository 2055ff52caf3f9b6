#include "fusion/push_window.h"

#include <algorithm>

namespace gradwire::fusion {

void PushWindow::sent(std::uint32_t destination, std::uint64_t bytes, Time now) {
  Lane& lane = lanes_[destination];
  lane.unanswered.push_back({bytes, now});
  lane.unanswered_bytes += bytes;
}

void PushWindow::answered(std::uint32_t destination, std::uint64_t bytes, Time now) {
  Lane& lane = lanes_[destination];
  lane.last_answer = now;
  while (bytes > 0 && !lane.unanswered.empty()) {
    Sent& oldest = lane.unanswered.front();
    const std::uint64_t taken = std::min(bytes, oldest.bytes);
    bytes -= taken;
    oldest.bytes -= taken;
    lane.unanswered_bytes -= taken;
    if (oldest.bytes > 0) return;
    lane.fastest = std::min(lane.fastest.value_or(Duration::max()), now - oldest.at);
    lane.unanswered.pop_front();
  }
}

std::optional<PushWindow::Time> PushWindow::closed_until(std::uint32_t destination, Time now) const {
  const Lane& lane = lanes_[destination];
  if (lane.unanswered_bytes < kLeastBytes || lane.unanswered.size() < kLeastPushes || !lane.fastest)
    return std::nullopt;
  const Duration patience = 2 * *lane.fastest + kSlack;
  const bool is_late = now - lane.unanswered.front().at > patience;
  const bool others_push = now - lane.last_answer < patience;
  if (!is_late || !others_push) return std::nullopt;
  return lane.last_answer + patience;
}

void PushWindow::forget() {
  for (Lane& lane : lanes_) {
    lane.unanswered.clear();
    lane.unanswered_bytes = 0;
  }
}

}  // namespace gradwire::fusion
