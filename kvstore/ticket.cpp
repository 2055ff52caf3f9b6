#include "kvstore/ticket.h"

#include <condition_variable>
#include <mutex>

namespace gradwire::kvstore {

struct Ticket::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;

  void finish(std::exception_ptr with) {
    {
      const std::lock_guard lock(mutex);
      if (done) return;
      done = true;
      error = std::move(with);
    }
    changed.notify_all();
  }
};

Ticket::Ticket() : state_(std::make_shared<State>()) {}

bool Ticket::done() const {
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

bool Ticket::failed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->error != nullptr;
}

bool Ticket::wait_for(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, timeout, [this] { return state_->done; })) return false;
  if (state_->error) std::rethrow_exception(state_->error);
  return true;
}

void Ticket::wait() const {
  while (!wait_for(std::chrono::hours(1))) {
  }
}

void Ticket::succeed() const { state_->finish(nullptr); }
void Ticket::fail(std::exception_ptr error) const { state_->finish(std::move(error)); }

}  // namespace gradwire::kvstore
