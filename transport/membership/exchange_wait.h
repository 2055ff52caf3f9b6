// ExchangeWait is a worker's wait in an exchange, over ZeroMQ or MPI: who is missing is asked, told once it
// has lasted, and known when time is up.
//
// Threading: on the caller's thread, which holds the messenger's mutex; others may call answer the questions.
// Lifetime: of one call of Messenger::exchange().
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

/// Who hears, and after how long, that a worker waits in an exchange.
struct SlowExchange {
  std::chrono::milliseconds warning{60'000};
  /// On the thread that waits, without a lock; what it throws ends the exchange. self: who waits. May be
  /// empty.
  std::function<void(Node self, const std::string& text)> notify;
};

class ExchangeWait {
 public:
  struct Subject {
    Node self;
    std::uint64_t sequence = 0;
    std::string_view name;
    std::string_view coordinator;  ///< who knows who is missing, for people
  };
  /// What the caller shares with the thread that hears answers.
  struct Shared {
    std::unique_lock<std::mutex>& lock;
    std::condition_variable& changed;          ///< when something of the exchange, or of the job, is heard
    std::function<bool()> is_settled;          ///< whether there is nothing more to wait for
    std::function<void()> ask_who_is_missing;  ///< the answer goes to AwaitedExchange::missing
  };

  ExchangeWait(Subject subject, AwaitedExchange& awaited, Shared shared)
      : subject_(subject), awaited_(awaited), shared_(std::move(shared)) {}

  /// Returns "" when it is settled, or else, after timeout, who did not come.
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
