// MpiWatchdog detects that an MPI call does not return. After a peer's death, Open MPI over TCP can deadlock
// inside a call.
//
// Threading: has a thread of its own, which calls on_stuck at most once. The I/O thread reports its calls.
// Lifetime: the destructor joins, and waits for a running on_stuck.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace gradwire::transport {

class MpiWatchdog {
 public:
  using Clock = std::chrono::steady_clock;

  /// Calls on_stuck when MPI was entered and not left for patience.
  MpiWatchdog(std::chrono::milliseconds patience, std::function<void()> on_stuck);
  ~MpiWatchdog();
  MpiWatchdog(const MpiWatchdog&) = delete;
  MpiWatchdog& operator=(const MpiWatchdog&) = delete;

  /// As long as it lives, the thread is in MPI.
  class Stay {
   public:
    Stay(MpiWatchdog& watch, Clock::time_point now) noexcept : watch_(watch) {
      watch_.entered_ = now.time_since_epoch().count();
    }
    ~Stay() { watch_.entered_ = kOutside; }
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;

   private:
    MpiWatchdog& watch_;
  };

 private:
  static constexpr Clock::rep kOutside = 0;

  void run();

  const std::chrono::milliseconds patience_;
  const std::function<void()> on_stuck_;
  std::atomic<Clock::rep> entered_{kOutside};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace gradwire::transport
