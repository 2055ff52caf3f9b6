// Loop is one thread's inbox of work: others post, the owner runs. All state of Engine and Server is touched
// only inside such a loop, so it needs no lock.
//
// Threading: post(), post_first() and stop() from any thread; run() from one. Tasks posted after stop() are
// dropped, unrun.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <vector>

namespace gradwire::kvstore {

/// A callable that may own move-only things.
class Task {
 public:
  template <typename F>
  requires(!std::is_same_v<std::decay_t<F>, Task>) Task(F&& f)
      : call_(std::make_unique<Holder<std::decay_t<F>>>(std::forward<F>(f))) {}
  void operator()() { call_->run(); }

 private:
  struct Callable {
    virtual ~Callable() = default;
    virtual void run() = 0;
  };
  template <typename F>
  struct Holder final : Callable {
    explicit Holder(F&& f) : call(std::move(f)) {}
    explicit Holder(const F& f) : call(f) {}
    void run() override { call(); }
    F call;
  };
  std::unique_ptr<Callable> call_;
};

class Loop {
 public:
  void post(Task task);
  /// As post(), but the task runs before all that wait: as soon as the one that is running ends.
  void post_first(Task task);

  /// Runs tasks in order until stop(). Calls after_batch once the inbox was drained (so that what a batch
  /// produced leaves together), and on_tick about every tick.
  void run(std::chrono::milliseconds tick, const std::function<void()>& after_batch,
           const std::function<void()>& on_tick);

  /// Has run() call after_batch at that time, or before, though no task may come. Called within run().
  void wake_at(std::chrono::steady_clock::time_point time);

  /// Ends run() after the tasks that were posted before.
  void stop();

 private:
  void run_first();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::vector<Task> inbox_;
  std::vector<Task> first_;  ///< what goes before the inbox
  bool stopped_ = false;
  std::optional<std::chrono::steady_clock::time_point> wake_;  ///< of the owner's thread alone
};

}  // namespace gradwire::kvstore
