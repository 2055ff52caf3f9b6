#include "transport/membership/exchange_wait.h"

#include <algorithm>

#include "transport/nodes.h"

namespace gradwire::transport {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kCheck{1'000};          // how often is asked who is missing
constexpr milliseconds kMissingAnswer{1'000};  // how long a late worker waits to hear whom it waited for

}  // namespace

std::string ExchangeWait::within(milliseconds timeout, const SlowExchange& slow) {
  const auto& [lock, changed, is_settled, ask_who_is_missing] = shared_;
  const Clock::time_point began = Clock::now(), deadline = began + timeout;
  // A warning that is due earlier than the first check needs the answer to a question by then.
  const milliseconds check = std::clamp(slow.warning, milliseconds(1), kCheck);
  bool has_told = !slow.notify;
  const auto is_to_tell = [&] {
    // The warning names the missing workers, so it waits for the first answer. That answer ends the wait
    // below.
    return !has_told && awaited_.missing && Clock::now() - began >= slow.warning;
  };
  while (!is_settled() && Clock::now() < deadline) {
    const auto next = std::min(deadline, Clock::now() + check);
    // wait_until returns true at either end: the exchange is settled, or an answer allows the warning.
    if (changed.wait_until(lock, next, [&] { return is_settled() || is_to_tell(); }) && !is_settled()) {
      // Set before the call, which releases the lock: one warning, whatever arrives meanwhile.
      has_told = true;
      tell(slow, Clock::now() - began);
    } else if (!is_settled()) {
      // Each time anew, because the question or its answer may be lost with a connection.
      ask_who_is_missing();
    }
  }
  return is_settled() ? "" : who_did_not_come(timeout);
}

void ExchangeWait::tell(const SlowExchange& slow, Clock::duration waited) {
  const std::string text = exchange_wait_text(subject_.sequence, subject_.name, *awaited_.missing,
                                              std::chrono::duration_cast<milliseconds>(waited));
  // The callback may take as long as it likes, and answers come in on the I/O thread under this lock.
  shared_.lock.unlock();
  try {
    slow.notify(subject_.self, text);
  } catch (...) {
    // The caller's clean-up expects the lock, also while an exception passes.
    shared_.lock.lock();
    throw;
  }
  shared_.lock.lock();
}

std::string ExchangeWait::who_did_not_come(milliseconds timeout) {
  // What is known may be as old as one check: a worker that has come since must not be blamed.
  awaited_.missing.reset();
  shared_.ask_who_is_missing();
  shared_.changed.wait_for(shared_.lock, kMissingAnswer,
                           [&] { return shared_.is_settled() || awaited_.missing; });
  // The last worker came while this one asked: a result that is there is not thrown away.
  if (shared_.is_settled()) return "";
  // Without an answer only the coordinator's silence is certain, so the error names that.
  const std::string who =
      awaited_.missing ? list_workers(*awaited_.missing) : std::string(subject_.coordinator);
  return exchange_timeout_text(subject_.sequence, subject_.name, who, timeout);
}

}  // namespace gradwire::transport
