#include "transport/mpi/mpi_watchdog.h"

#include <utility>

namespace gradwire::transport {

MpiWatchdog::MpiWatchdog(std::chrono::milliseconds patience, std::function<void()> on_stuck)
    : patience_(patience), on_stuck_(std::move(on_stuck)), thread_([this] { run(); }) {}

MpiWatchdog::~MpiWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// The same stay in MPI is seen at every look for so long: a process that was stopped meanwhile has looked
// less often.
void MpiWatchdog::run() {
  constexpr int kLooks = 10;
  const auto between = patience_ / kLooks;
  Clock::rep seen = kOutside;
  int looks = 0;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, between, [this] { return stopping_; })) {
    const Clock::rep entered = entered_;
    looks = entered != kOutside && entered == seen ? looks + 1 : 0;
    seen = entered;
    if (looks < kLooks) continue;
    lock.unlock();
    on_stuck_();
    return;
  }
}

}  // namespace gradwire::transport
