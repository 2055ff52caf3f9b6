#include "transport/membership/exchange_desk.h"

#include <numeric>

#include "transport/messenger.h"

namespace gradwire::transport {

std::optional<ExchangeReply> ExchangeDesk::take(std::uint32_t worker, std::uint64_t sequence, ExchangeAsk ask,
                                                std::string_view payload) {
  if (ask == ExchangeAsk::kOffer) {
    const std::size_t end = payload.find('\0');
    if (end == std::string_view::npos)
      throw FrameError("exchange: its payload has no name that ends in a NUL");
    exchanges_.offer(sequence, worker, payload.substr(0, end), payload.substr(end + 1));
  }
  const bool asks = ask == ExchangeAsk::kStatus;
  switch (exchanges_.state(sequence)) {
    case Exchanges::State::kMismatch:
      throw CallMismatch(exchanges_.fault(sequence));
    case Exchanges::State::kDeserted:
      return deserted(sequence);
    case Exchanges::State::kComplete:
      return ExchangeReply{asks ? std::vector{worker} : everybody(), sequence, ExchangeAnswer::kComplete,
                           pack_blobs(exchanges_.blobs(sequence))};
    case Exchanges::State::kWaiting:
      break;
  }
  if (!asks) return std::nullopt;
  return ExchangeReply{
      {worker}, sequence, ExchangeAnswer::kWaiting, pack_ranks(exchanges_.missing(sequence))};
}

std::vector<ExchangeReply> ExchangeDesk::leave(std::uint32_t worker, const std::string& error) {
  exchanges_.leave(worker, error);
  std::vector<ExchangeReply> replies;
  for (const std::uint64_t sequence : exchanges_.open()) {
    if (exchanges_.state(sequence) == Exchanges::State::kDeserted) replies.push_back(deserted(sequence));
  }
  return replies;
}

std::vector<std::uint32_t> ExchangeDesk::everybody() const {
  std::vector<std::uint32_t> ranks(workers_);
  std::iota(ranks.begin(), ranks.end(), 0U);
  return ranks;
}

ExchangeReply ExchangeDesk::deserted(std::uint64_t sequence) const {
  return {exchanges_.present(sequence), sequence, ExchangeAnswer::kDeserted, exchanges_.fault(sequence)};
}

}  // namespace gradwire::transport
