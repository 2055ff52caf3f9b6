#include "transport/membership/exchange_table.h"

#include <algorithm>
#include <limits>

#include "transport/nodes.h"

namespace gradwire::transport {

ExchangeTable::State ExchangeTable::offer(std::uint64_t sequence, std::uint32_t rank, std::string_view name,
                                          std::string_view blob) {
  // An offer of a table that is forgotten is a repetition. It must not begin a table anew, which the others
  // would never complete.
  if (sequence >= oldest_) {
    // The first blob stays: an offer that comes again after a break must not change a result that others
    // have.
    tables_[sequence].try_emplace(rank, Offer{std::string(name), std::string(blob)});
    // Two threads of a worker, in two exchanges, offer again in any order what a break has lost.
    std::uint64_t& latest = latest_[rank];
    latest = std::max(latest, sequence);
    // Not this one, where all have moved on: its result has reached nobody yet.
    forget_finished(sequence);
  }
  return state(sequence);
}

void ExchangeTable::leave(std::uint32_t rank, const std::string& error) {
  // The first reason stays. Where the worker had offered before it left, its blob stays in the table.
  left_.emplace(rank, error);
  forget_finished(std::numeric_limits<std::uint64_t>::max());
}

ExchangeTable::State ExchangeTable::state(std::uint64_t sequence) const {
  const auto found = tables_.find(sequence);
  // Nobody has come, or all have moved on. Only a worker whose offer was lost asks then, and it sends its
  // offer again when it finds itself among the missing.
  if (found == tables_.end()) return State::kWaiting;
  const Table& table = found->second;
  const auto differs = [&](const auto& entry) { return entry.second.name != table.begin()->second.name; };
  // Before completeness: blobs of different calls must not be handed out as one result. Also before all are
  // here, since the workers that are missing cannot mend it.
  if (std::ranges::any_of(table, differs)) return State::kMismatch;
  // Before desertion: a worker that left after its offer is not missing, and its last exchange has a result.
  if (table.size() == workers_) return State::kComplete;
  const auto ranks = missing(sequence);
  const bool deserted = std::ranges::any_of(ranks, [&](auto rank) { return left_.contains(rank); });
  return deserted ? State::kDeserted : State::kWaiting;
}

bool ExchangeTable::has_come(std::uint64_t sequence, std::uint32_t rank) const {
  const auto newest = latest_.find(rank);
  // Not from tables_, where a finished exchange may be forgotten. A worker's numbers only grow.
  return newest != latest_.end() && newest->second >= sequence;
}

std::vector<std::string> ExchangeTable::blobs(std::uint64_t sequence) const {
  std::vector<std::string> blobs;
  for (const auto& [rank, offer] : tables_.at(sequence)) blobs.push_back(offer.blob);
  return blobs;
}

std::vector<std::uint32_t> ExchangeTable::missing(std::uint64_t sequence) const {
  const auto found = tables_.find(sequence);
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < workers_; ++rank) {
    if (found == tables_.end() || !found->second.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<std::uint32_t> ExchangeTable::present(std::uint64_t sequence) const {
  std::vector<std::uint32_t> ranks;
  const auto found = tables_.find(sequence);
  if (found == tables_.end()) return ranks;
  for (const auto& [rank, offer] : found->second) ranks.push_back(rank);
  return ranks;
}

std::vector<std::uint32_t> ExchangeTable::odd(std::uint64_t sequence) const {
  std::vector<std::uint32_t> ranks;
  const auto found = tables_.find(sequence);
  if (found == tables_.end()) return ranks;
  const Table& table = found->second;
  for (const auto& [rank, offer] : table) {
    if (offer.name != table.begin()->second.name) ranks.push_back(rank);
  }
  return ranks;
}

std::string ExchangeTable::fault(std::uint64_t sequence) const {
  const Table& table = tables_.at(sequence);
  const auto& [first_rank, first] = *table.begin();
  for (const auto& [rank, offer] : table) {
    if (offer.name == first.name) continue;
    return "exchange " + std::to_string(sequence) + ": worker " + std::to_string(first_rank) + " is in '" +
           first.name + "' while worker " + std::to_string(rank) + " is in '" + offer.name +
           "'; every worker must make the same calls in the same order";
  }
  const std::string exchange = "exchange " + std::to_string(sequence) + " ('" + first.name + "'): ";
  std::vector<std::uint32_t> gone;
  for (const auto rank : missing(sequence)) {
    const auto found = left_.find(rank);
    // A missing worker that is still in the job is not at fault: it may yet come.
    if (found == left_.end()) continue;
    // One worker's error is named before any that left normally: it is the likelier cause of their leaving,
    // too.
    if (!found->second.empty())
      return exchange + "worker " + std::to_string(rank) + " failed: " + found->second +
             "; see its traceback";
    gone.push_back(rank);
  }
  return exchange + list_workers(gone) + (gone.size() == 1 ? " has" : " have") + " left the job";
}

std::vector<std::uint64_t> ExchangeTable::open() const {
  std::vector<std::uint64_t> sequences;
  for (const auto& [sequence, table] : tables_) {
    if (state(sequence) != State::kComplete) sequences.push_back(sequence);
  }
  return sequences;
}

// A result can be asked for again until its worker has moved on to the next exchange.
void ExchangeTable::forget_finished(std::uint64_t end) {
  std::uint64_t current = tables_.empty() ? 0 : std::min(end, tables_.rbegin()->first);
  for (std::uint32_t rank = 0; rank < workers_; ++rank) {
    // It asks for no result any more, and its last number would keep every later table.
    if (left_.contains(rank)) continue;
    const auto found = latest_.find(rank);
    current = std::min(current, found == latest_.end() ? 0 : found->second);
  }
  // A table that lacks an offer stays: another thread of that worker may have moved on, and the offer comes
  // again.
  while (oldest_ < current && state(oldest_) == State::kComplete) tables_.erase(oldest_++);
}

}  // namespace gradwire::transport
