#include "transport/membership/exchange_coordinator.h"

#include <numeric>

#include "transport/messenger.h"

namespace gradwire::transport {

std::optional<ExchangeReply> ExchangeCoordinator::take(std::uint32_t worker, std::uint64_t sequence,
                                                       ExchangeAsk ask, std::string_view payload) {
  if (ask == ExchangeAsk::kOffer) {
    const std::size_t end = payload.find('\0');
    if (end == std::string_view::npos)
      throw FrameError("exchange: its payload has no name that ends in a NUL");
    // The state is judged below and not taken from here, because a worker that only asks needs it, too.
    exchanges_.offer(sequence, worker, payload.substr(0, end), payload.substr(end + 1));
  }
  const bool asks = ask == ExchangeAsk::kStatus;
  switch (exchanges_.state(sequence)) {
    case ExchangeTable::State::kMismatch:
      // The caller decides whom this ends: the whole job, or newcomers alone (odd()).
      throw CallMismatch(exchanges_.fault(sequence));
    case ExchangeTable::State::kDeserted:
      // To all that are present: a worker that has this reply already waits for it no longer, and ignores it.
      return deserted(sequence);
    case ExchangeTable::State::kComplete:
      // The last offer completes it for everybody. A worker that asks after that did not receive its reply,
      // so the result goes to that one alone.
      return ExchangeReply{asks ? std::vector{worker} : everybody(), sequence, ExchangeAnswer::kComplete,
                           pack_blobs(exchanges_.blobs(sequence))};
    case ExchangeTable::State::kWaiting:
      break;
  }
  // An offer that completes nothing needs no reply: its worker asks once a second.
  if (!asks) return std::nullopt;
  return ExchangeReply{
      {worker}, sequence, ExchangeAnswer::kWaiting, pack_ranks(exchanges_.missing(sequence))};
}

std::vector<ExchangeReply> ExchangeCoordinator::leave(std::uint32_t worker, const std::string& error) {
  exchanges_.leave(worker, error);
  std::vector<ExchangeReply> replies;
  // Several may be open: a desertion does not end the job, and its workers may be in a later exchange by now.
  for (const std::uint64_t sequence : exchanges_.open()) {
    if (exchanges_.state(sequence) == ExchangeTable::State::kDeserted) replies.push_back(deserted(sequence));
  }
  return replies;
}

std::vector<std::uint32_t> ExchangeCoordinator::everybody() const {
  std::vector<std::uint32_t> ranks(workers_);
  std::iota(ranks.begin(), ranks.end(), 0U);
  return ranks;
}

ExchangeReply ExchangeCoordinator::deserted(std::uint64_t sequence) const {
  return {exchanges_.present(sequence), sequence, ExchangeAnswer::kDeserted, exchanges_.fault(sequence)};
}

}  // namespace gradwire::transport
