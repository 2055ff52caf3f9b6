#include "kvstore/runtime/callers.h"

#include <utility>

namespace gradwire::kvstore {

/// Whose caller this thread is: they forget it at its end.
class CallersOfThread {
 public:
  ~CallersOfThread() {
    for (const auto& each : all_) {
      // A thread that ended would otherwise count as one at work for ever, and no standstill be found.
      if (const auto callers = each.lock()) callers->forget(std::this_thread::get_id());
    }
  }
  void add(const std::shared_ptr<Callers>& callers) {
    // A long-lived thread may drive one Engine after another.
    std::erase_if(all_, [](const auto& each) { return each.expired(); });
    all_.push_back(callers);
  }

 private:
  std::vector<std::weak_ptr<Callers>> all_;
};

Callers::Thread& Callers::here() {
  static thread_local CallersOfThread own;
  const auto [found, is_new] = threads_.try_emplace(std::this_thread::get_id());
  if (is_new) own.add(shared_from_this());
  return found->second;
}

void Callers::forget(std::thread::id thread) {
  const std::lock_guard lock(mutex_);
  threads_.erase(thread);
}

void Callers::note_call() {
  ++calls_;
  const std::lock_guard lock(mutex_);
  here();
}

void Callers::change_endless(int by) {
  const std::lock_guard lock(mutex_);
  Thread& thread = here();
  thread.endless += by;
  // A wait that a timeout has ended is taken back here.
  if (thread.endless == 0) thread.wait.reset();
}

void Callers::begin_wait(Wait wait) {
  const std::lock_guard lock(mutex_);
  Thread& thread = here();
  // A wait with a timeout of its own proves no deadlock: its thread goes on by itself.
  if (thread.endless > 0) thread.wait = std::move(wait);
}

void Callers::end_wait() {
  const std::lock_guard lock(mutex_);
  here().wait.reset();
}

std::optional<Callers::Standstill> Callers::standstill() const {
  // The count is read before the waits. If a call is made in between, the report is void and not wrong.
  Standstill found{calls_, {}};
  const std::lock_guard lock(mutex_);
  for (const auto& [id, thread] : threads_) {
    // One thread at work may begin what the others wait for.
    if (!thread.wait) return std::nullopt;
    found.waits.push_back(*thread.wait);
  }
  if (found.waits.empty()) return std::nullopt;
  return found;
}

}  // namespace gradwire::kvstore
