// ExchangeCoordinator answers what workers send about their exchanges. The coordinator of a job (the
// scheduler over ZeroMQ, rank 0 over MPI) has one and delivers its replies.
//
// Threading: none of its own; one thread at a time. Pure: no clock, no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/membership/control.h"
#include "transport/membership/exchange_table.h"

namespace gradwire::transport {

/// A kExchangeResult for each of the workers named.
struct ExchangeReply {
  std::vector<std::uint32_t> workers;
  std::uint64_t sequence = 0;
  ExchangeAnswer answer = ExchangeAnswer::kWaiting;
  std::string payload;
};

class ExchangeCoordinator {
 public:
  explicit ExchangeCoordinator(std::uint32_t workers) : workers_(workers), exchanges_(workers) {}

  /// Takes the payload of a worker's kExchange. Returns the reply that is due, if any. Throws FrameError on a
  /// payload that is none, CallMismatch when two workers are in exchanges of different names (odd()): the
  /// job is over, or goes on without one.
  std::optional<ExchangeReply> take(std::uint32_t worker, std::uint64_t sequence, ExchangeAsk ask,
                                    std::string_view payload);
  /// The workers whose exchange has another name than that of the lowest rank in it.
  std::vector<std::uint32_t> odd(std::uint64_t sequence) const { return exchanges_.odd(sequence); }
  const ExchangeTable& exchanges() const { return exchanges_; }
  /// Notes that a worker has left the job; error: as ExchangeTable::leave(). Returns the replies for workers
  /// that still wait for it.
  std::vector<ExchangeReply> leave(std::uint32_t worker, const std::string& error = {});

 private:
  std::vector<std::uint32_t> everybody() const;
  ExchangeReply deserted(std::uint64_t sequence) const;

  const std::uint32_t workers_;
  ExchangeTable exchanges_;
};

}  // namespace gradwire::transport
