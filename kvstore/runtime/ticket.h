// Ticket is the caller's end of an operation in flight: done, failed with an error, or still in progress.
//
// Threading: a Ticket may be copied and waited on from any thread. Errors cross threads only in here.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kvstore/runtime/callers.h"
#include "kvstore/trace/trace.h"

namespace gradwire::kvstore {

/// What an operation's error says, for those on other ranks.
std::string text_of(const std::exception_ptr& error);

class Ticket {
 public:
  Ticket();

  bool done() const;
  /// True when done with an error.
  bool failed() const;
  /// Waits until done or timeout. Returns false on timeout; rethrows the operation's error.
  bool wait_for(std::chrono::milliseconds timeout) const;
  /// Waits until done; rethrows the operation's error. The Engine's slow_abort bounds the wait.
  void wait() const;

  /// Whether any rank found a NaN or infinity in this operation; known once done.
  bool nonfinite() const;

  /// Calls next once, when done, on the thread that finishes, or here if it is done; with the error or null.
  /// next must return at once and not throw. At most one.
  void then(std::function<void(std::exception_ptr)> next) const;

  /// Reports to the callers of an Engine what a thread that waits for this ticket waits for.
  void concern(std::shared_ptr<Callers> callers, Callers::Wait wait) const;

  /// While it lives, this thread waits for the ticket; null where no report is needed.
  std::unique_ptr<Callers::Endless> endless() const;

  /// Notes, as a span like this one, for how long the first to wait is blocked, if it was not done before.
  /// What is given again replaces that, but for the begin of a wait.
  void note_wait(const Tracer& tracer, const Span& span) const;

  /// Engine's end: before succeed(), has nonfinite() be true.
  void note_nonfinite() const;
  /// Likewise. The first of the two calls wins.
  void succeed() const;
  void fail(std::exception_ptr error) const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // owners: the caller's tickets and the operation inside Engine
};

/// A push that has begun.
struct BegunPush {
  Ticket taken;  ///< the gradient is no longer read
  Ticket done;   ///< its round is over
};

/// Waits until all are done, so that none uses its caller's memory any more; rethrows the first one's error.
void wait_all(std::span<const Ticket> tickets);

}  // namespace gradwire::kvstore
