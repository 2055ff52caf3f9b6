#include "kvstore/runtime/loop.h"

#include <algorithm>
#include <utility>

namespace gradwire::kvstore {

void Loop::post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    inbox_.push_back(std::move(task));
    if (inbox_.size() > 1) return;  // the owner was woken by the first
  }
  posted_.notify_one();
}

void Loop::post_first(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    first_.push_back(std::move(task));
    if (first_.size() > 1) return;
  }
  posted_.notify_one();
}

void Loop::run_first() {
  std::vector<Task> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(first_);
  }
  for (Task& task : tasks) task();
}

void Loop::run(std::chrono::milliseconds tick, const std::function<void()>& after_batch,
               const std::function<void()>& on_tick) {
  using Clock = std::chrono::steady_clock;
  auto next_tick = Clock::now() + tick;
  std::vector<Task> batch;
  for (bool stopping = false; !stopping;) {
    {
      std::unique_lock lock(mutex_);
      // Each after_batch() says anew whether it is still waiting for a time.
      const auto wake = std::min(next_tick, std::exchange(wake_, std::nullopt).value_or(next_tick));
      posted_.wait_until(lock, wake, [this] { return stopped_ || !inbox_.empty() || !first_.empty(); });
      // Under the lock that stop() takes: what was posted before stop() is in this batch, and still runs.
      batch.swap(inbox_);
      stopping = stopped_;
    }
    run_first();
    for (Task& task : batch) {
      task();
      // Between any two tasks: credit that a socket has given back is then there for what the next task
      // sends.
      run_first();
    }
    batch.clear();
    // Also where nothing was posted: wake_at() and the tick want what is due to leave.
    after_batch();
    if (const auto now = Clock::now(); now >= next_tick) {
      on_tick();
      // Ticks that a long batch has missed are not made up for.
      next_tick = now + tick;
    }
  }
}

void Loop::wake_at(std::chrono::steady_clock::time_point time) {
  wake_ = std::min(time, wake_.value_or(time));
}

void Loop::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  posted_.notify_one();
}

}  // namespace gradwire::kvstore
