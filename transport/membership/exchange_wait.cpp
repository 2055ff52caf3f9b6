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
  const milliseconds check = std::clamp(slow.warning, milliseconds(1), kCheck);
  bool has_told = !slow.notify;
  const auto is_to_tell = [&] {
    return !has_told && awaited_.missing && Clock::now() - began >= slow.warning;
  };
  while (!is_settled() && Clock::now() < deadline) {
    const auto next = std::min(deadline, Clock::now() + check);
    if (changed.wait_until(lock, next, [&] { return is_settled() || is_to_tell(); }) && !is_settled()) {
      has_told = true;
      tell(slow, Clock::now() - began);
    } else if (!is_settled()) {
      ask_who_is_missing();
    }
  }
  return is_settled() ? "" : who_did_not_come(timeout);
}

void ExchangeWait::tell(const SlowExchange& slow, Clock::duration waited) {
  const std::string text = exchange_wait_text(subject_.sequence, subject_.name, *awaited_.missing,
                                              std::chrono::duration_cast<milliseconds>(waited));
  shared_.lock.unlock();
  try {
    slow.notify(subject_.self, text);
  } catch (...) {
    shared_.lock.lock();
    throw;
  }
  shared_.lock.lock();
}

std::string ExchangeWait::who_did_not_come(milliseconds timeout) {
  awaited_.missing.reset();
  shared_.ask_who_is_missing();
  shared_.changed.wait_for(shared_.lock, kMissingAnswer,
                           [&] { return shared_.is_settled() || awaited_.missing; });
  if (shared_.is_settled()) return "";
  const std::string who =
      awaited_.missing ? list_workers(*awaited_.missing) : std::string(subject_.coordinator);
  return exchange_timeout_text(subject_.sequence, subject_.name, who, timeout);
}

}  // namespace gradwire::transport
