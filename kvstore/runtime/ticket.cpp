#include "kvstore/runtime/ticket.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

namespace gradwire::kvstore {

struct Ticket::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  bool nonfinite = false;
  std::exception_ptr error;
  std::function<void(std::exception_ptr)> next;
  struct Wait {
    Tracer tracer;
    Span span;
  };
  std::unique_ptr<Wait> wait;        ///< that is to be noted
  std::shared_ptr<Callers> callers;  ///< who hear of waits; null: nobody. Owners: Callers' (standstill.h)
  Callers::Wait awaited;

  void begin_wait() const {
    if (wait && wait->span.begin == TraceClock::time_point()) wait->span.begin = TraceClock::now();
  }
  void end_wait() {
    if (!wait) return;
    wait->span.end = TraceClock::now();
    if (wait->tracer.is_on()) wait->tracer.add(wait->span);
    wait.reset();
  }

  void finish(const std::exception_ptr& with) {
    std::function<void(std::exception_ptr)> then;
    {
      const std::lock_guard lock(mutex);
      // An answer and a failure of everything may both come. The first one counts.
      if (done) return;
      done = true;
      error = with;
      then = std::exchange(next, nullptr);
    }
    // Without the lock: `then` may ask this very ticket, as HostRelay does, or post to a loop.
    changed.notify_all();
    if (then) then(with);
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
  state_->begin_wait();
  // A ticket that is done makes nobody wait.
  const auto callers = state_->done ? nullptr : state_->callers;
  if (callers) callers->begin_wait(state_->awaited);
  // After a timeout the wait stays noted. Within an Endless this thread only looks again and still waits; the
  // end of the Endless takes the note back.
  if (!state_->changed.wait_for(lock, timeout, [this] { return state_->done; })) return false;
  if (callers) callers->end_wait();
  // Only now: a wait that timed out goes on with the next look, and its span began with the first.
  state_->end_wait();
  if (state_->error) std::rethrow_exception(state_->error);
  return true;
}

bool Ticket::nonfinite() const {
  const std::lock_guard lock(state_->mutex);
  return state_->nonfinite;
}

std::unique_ptr<Callers::Endless> Ticket::endless() const {
  return state_->callers ? std::make_unique<Callers::Endless>(*state_->callers) : nullptr;
}

void Ticket::wait() const {
  const auto until_done = endless();
  while (!wait_for(std::chrono::hours(1))) {
  }
}

void Ticket::concern(std::shared_ptr<Callers> callers, Callers::Wait wait) const {
  const std::lock_guard lock(state_->mutex);
  state_->callers = std::move(callers);
  state_->awaited = std::move(wait);
}

void Ticket::then(std::function<void(std::exception_ptr)> next) const {
  std::exception_ptr error;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->done) {
      state_->next = std::move(next);
      return;
    }
    error = state_->error;
  }
  next(error);
}

void Ticket::note_wait(const Tracer& tracer, const Span& span) const {
  const std::lock_guard lock(state_->mutex);
  if (state_->wait) {
    const auto begin = state_->wait->span.begin;
    state_->wait->tracer = tracer;
    state_->wait->span = span;
    state_->wait->span.begin = begin;
  } else if (!state_->done) {
    state_->wait = std::make_unique<State::Wait>(State::Wait{tracer, span});
  }
}

void Ticket::note_nonfinite() const {
  const std::lock_guard lock(state_->mutex);
  state_->nonfinite = true;
}

void Ticket::succeed() const { state_->finish(nullptr); }
void Ticket::fail(std::exception_ptr error) const { state_->finish(error); }

void wait_all(std::span<const Ticket> tickets) {
  std::exception_ptr error;
  for (const Ticket& ticket : tickets) {
    try {
      ticket.wait();
    } catch (...) {
      // All are awaited also after an error: the others still use the caller's memory.
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& cause) {
    return cause.what();
  }
}

}  // namespace gradwire::kvstore
