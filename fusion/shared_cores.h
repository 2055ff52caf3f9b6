// Cores that computation, codecs, sums and the network share: how fast work advances if there are fewer
// cores than threads. Everything advances at one rate, as threads of equal weight do under a fair scheduler.
//
// Threading: none of its own. The caller passes times, simulated seconds that never fall.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <vector>

namespace gradwire::fusion {

/// The machine that a worker is on. Workers are alike, so one stands for those that share it.
struct CoreModel {
  double cores = std::numeric_limits<double>::infinity();
  double compute_threads = 1;  ///< of a worker, while it goes forward or backward; 0: a device computes
  double workers = 1;          ///< that share the machine
  double servers_share =
      0;                    ///< of all servers' threads, what is on the machine; above 1: of each worker here
  double byte_seconds = 0;  ///< of one core, to send or to receive a byte

  bool operator==(const CoreModel&) const = default;
};

/// What runs at one time: threads of one worker, threads of all servers, and bytes a second that cross a
/// worker's link, both directions, at full speed.
struct CoreLoad {
  double worker_threads = 0;
  double server_threads = 0;
  double bytes_per_second = 0;
};

/// Seconds of work that are done in a second: 1 where every thread has a core.
double core_speed(const CoreModel& model, const CoreLoad& load, double all_workers);

/// Throws std::invalid_argument naming what no machine has.
void validate(const CoreModel& model);

/// Pieces of work, each of so many seconds of a thread that has a core, which advance at one speed.
template <typename Task>
class SharedWork {
 public:
  void add(double now, double seconds, const Task& task) {
    advance(now);
    running_.push({done_ + seconds, begun_++, task});
  }
  /// How fast everything advances from now on; until now it did at the old speed.
  void set_speed(double now, double speed) {
    advance(now);
    speed_ = speed;
  }
  /// When the next piece ends if nothing changes; none: nothing runs.
  std::optional<double> next_end() const {
    if (running_.empty()) return std::nullopt;
    const double left = running_.top().ends_at - done_;
    return now_ + (left > 0 ? left / speed_ : 0);
  }
  /// Ends the piece of next_end(). Requires a running one.
  Task end(double now) {
    advance(now);
    const Task task = running_.top().task;
    running_.pop();
    return task;
  }
  std::uint64_t begun() const noexcept { return begun_; }

 private:
  struct Piece {
    double ends_at = 0;       ///< in done_
    std::uint64_t begun = 0;  ///< breaks ties by age
    Task task{};
    bool operator>(const Piece& other) const {
      return ends_at != other.ends_at ? ends_at > other.ends_at : begun > other.begun;
    }
  };
  void advance(double now) {
    done_ += (now - now_) * speed_;
    now_ = now;
  }

  std::priority_queue<Piece, std::vector<Piece>, std::greater<>> running_;
  std::uint64_t begun_ = 0;
  double now_ = 0;
  double speed_ = 1;
  double done_ = 0;  // seconds of work that a piece would have done, had it always run
};

}  // namespace gradwire::fusion
