// PushWindow keeps a worker's pushes in step with those of others. A server can answer a push when every
// worker's is there. Connections that share a link into a server share it unequally, and so one worker gets
// ahead of the others: its pushes use up the link, but nothing can be answered, and the link out of the
// server stands idle. The worker that is ahead pauses, and so the others get the link.
//
// A worker is ahead while answers come, but late: its oldest push that has no answer has waited for more than
// its patience, which is twice the time of the fastest answer, and kSlack. One that gets no answers at all is
// not held up: the others compute, and the link is free. No pause is longer than the patience, and after one
// that no answers have ended, none comes until twice as much is without an answer: the others are slow, or
// push in another order.
//
// Threading: none of its own; the owner's thread calls it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace gradwire::fusion {

class PushWindow {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  /// Less without an answer is no lead. Neither are fewer pushes: one travels while the other is summed.
  static constexpr std::uint64_t kLeastBytes = 4ULL << 20;
  static constexpr std::size_t kLeastPushes = 2;
  static constexpr std::chrono::milliseconds kSlack{10};

  explicit PushWindow(std::uint32_t destinations) : lanes_(destinations) {}

  void sent(std::uint32_t destination, std::uint64_t bytes, Time now);
  /// An answer to pushes of so many bytes has come. Which of them does not matter: they are taken for the
  /// oldest.
  void answered(std::uint32_t destination, std::uint64_t bytes, Time now);
  /// A push of so many bytes is sent again, and counts once.
  void lost(std::uint32_t destination, std::uint64_t bytes) {
    take(lanes_[destination], bytes, std::nullopt);
  }
  /// When the next push may go, unless an answer comes before that; nothing: it may go now.
  std::optional<Time> closed_until(std::uint32_t destination, Time now);
  /// Begins anew, with no push without an answer: a step is over, or another server takes this one's place.
  void forget(std::uint32_t destination) { lanes_[destination] = {}; }

  std::uint64_t unanswered_bytes(std::uint32_t destination) const {
    return lanes_[destination].unanswered_bytes;
  }

 private:
  struct Sent {
    std::uint64_t bytes;
    std::uint64_t unanswered_bytes;
    Time at;
  };
  struct Lane {
    std::deque<Sent> unanswered;  // oldest first
    std::uint64_t unanswered_bytes = 0;
    std::uint64_t least_bytes = kLeastBytes;
    std::uint64_t largest = 0;        // push, in bytes
    std::optional<Duration> fastest;  // from a push of at least half of that to its answer
    Time last_answer{};
    std::optional<Time> closed_at;
  };
  static void take(Lane& lane, std::uint64_t bytes, std::optional<Time> answered_at);

  std::vector<Lane> lanes_;
};

}  // namespace gradwire::fusion
