// ExchangeWait is a worker's wait in an exchange, over ZeroMQ or MPI. It asks which workers are missing,
// reports them after a while, and names them when the deadline passes.
//
// Threading: on the caller's thread, which holds the messenger's mutex. The answers to its questions come on
// other threads.
// Lifetime: one call of Messenger::exchange().
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "transport/membership/control.h"

namespace gradwire::transport {

/// Who is notified, and after how long, that a worker waits in an exchange.
struct SlowExchange {
  std::chrono::milliseconds warning{60'000};
  /// Called on the waiting thread, without a lock; what it throws ends the exchange. self: the waiting
  /// worker. May be empty.
  std::function<void(Node self, const std::string& text)> notify;
};

class ExchangeWait {
 public:
  struct Subject {
    Node self;
    std::uint64_t sequence = 0;
    std::string_view name;
    std::string_view coordinator;  ///< the node that knows which workers are missing, for people
  };
  /// What the caller shares with the thread that receives answers.
  struct Shared {
    std::unique_lock<std::mutex>& lock;
    std::condition_variable& changed;          ///< notified by each answer about the exchange or the job
    std::function<bool()> is_settled;          ///< whether there is nothing more to wait for
    std::function<void()> ask_who_is_missing;  ///< the answer goes to AwaitedExchange::missing
  };

  ExchangeWait(Subject subject, AwaitedExchange& awaited, Shared shared)
      : subject_(subject), awaited_(awaited), shared_(std::move(shared)) {}

  /// Returns "" when it is settled. After timeout, returns the workers that did not come.
  std::string within(std::chrono::milliseconds timeout, const SlowExchange& slow);

 private:
  using Clock = std::chrono::steady_clock;

  void tell(const SlowExchange& slow, Clock::duration waited);
  std::string who_did_not_come(std::chrono::milliseconds timeout);

  const Subject subject_;
  AwaitedExchange& awaited_;
  const Shared shared_;
};

}  // namespace gradwire::transport
