#include "kvstore/runtime/pending_requests.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace gradwire::kvstore {
namespace {

// So the longest patience is 8 times `later`.
constexpr int kMostDoublings = 3;

/// Source: Paxson et al. 2011, "Computing TCP's retransmission timer" (RFC 6298), section 5, for the
/// doubling.
std::chrono::milliseconds patience_of(const PendingRequests::Request& request) {
  if (request.repetitions == 0) return request.patience.first;
  return request.patience.later * (1 << std::min(request.repetitions - 1, kMostDoublings));
}

}  // namespace

PendingRequests::Handle PendingRequests::begin(std::function<std::string()> name, Clock::time_point now,
                                               bool is_delivery) {
  return operations_.insert(operations_.end(), Operation{std::move(name), is_delivery, now});
}

void PendingRequests::add(Handle operation, std::uint64_t number, Request request, Clock::time_point now) {
  request.asked = now;
  operation->requests.insert_or_assign(number, std::move(request));
}

void PendingRequests::repeat(Request& request, Clock::time_point now) {
  // The back-off begins anew: the server has just said something, or another one has taken its place.
  heard(request);
  request.asked = now;
  request.repeat();
}

void PendingRequests::retry(Clock::time_point now) {
  for (Operation& operation : operations_) {
    for (auto& [number, request] : operation.requests) {
      if (now - request.asked < patience_of(request)) continue;
      request.asked = now;
      ++request.repetitions;
      request.repeat();
    }
  }
}

void PendingRequests::ask_again(std::uint32_t server, Clock::time_point now) {
  for (Operation& operation : operations_) {
    for (auto& [number, request] : operation.requests) {
      if (request.server == server) repeat(request, now);
    }
  }
}

bool PendingRequests::awaits_server(std::uint32_t rank) const {
  return std::ranges::any_of(operations_, [rank](const Operation& operation) {
    return std::ranges::any_of(operation.requests,
                               [rank](const auto& entry) { return entry.second.server == rank; });
  });
}

/// Who is awaited is worth a moment more, if servers have been asked and have not said it yet.
bool PendingRequests::is_slow(const Operation& operation, Clock::time_point now) const {
  constexpr std::chrono::milliseconds kMoment{1'000};
  const bool names_workers = std::ranges::any_of(
      operation.requests, [](const auto& entry) { return !entry.second.awaited.empty(); });
  const auto moment = names_workers ? kMoment * 0 : std::min(kMoment, limits_.warning / 2);
  return now - operation.began >= limits_.warning + moment;
}

std::vector<std::string> PendingRequests::warnings(Clock::time_point now) {
  std::map<std::string, Group> slow;
  for (const Operation& operation : operations_) {
    // By name: a collective's blobs are many operations of one name, and one line about them is enough.
    if (is_slow(operation, now)) slow[operation.name()].push_back(&operation);
  }
  std::vector<std::string> texts;
  std::set<std::string> names;
  for (const auto& [name, group] : slow) {
    if (!warned_.contains(name)) texts.push_back(describe(name, group, now));
    names.insert(name);
  }
  // An operation that has ended or been answered is forgotten. If one of its name gets slow later, that is
  // news.
  warned_ = std::move(names);
  return texts;
}

std::optional<std::string> PendingRequests::overdue(Clock::time_point now) const {
  const auto is_over = [&](const Operation& operation) { return now - operation.began >= limits_.abort; };
  const auto found = std::ranges::find_if(operations_, is_over);
  if (found == operations_.end()) return std::nullopt;
  const std::string name = found->name();
  Group group;
  for (const Operation& operation : operations_) {
    // The error names everybody that an operation of this name waits for, not only those of the oldest.
    if (is_over(operation) && operation.name() == name) group.push_back(&operation);
  }
  return describe(name, group, now);
}

std::string PendingRequests::describe(const std::string& name, const Group& group,
                                      Clock::time_point now) const {
  // Who has not sent has not taken either: deliveries matter to people where nothing else is awaited.
  const bool are_deliveries = std::ranges::all_of(group, &Operation::is_delivery);
  auto began = now;
  std::set<std::uint32_t> workers;
  std::set<std::string> servers;
  for (const Operation* const operation : group) {
    if (operation->is_delivery != are_deliveries) continue;
    began = std::min(began, operation->began);
    for (const auto& [number, request] : operation->requests) {
      workers.insert(request.awaited.begin(), request.awaited.end());
      servers.insert(transport::to_string({server_role_, request.server}));
    }
  }
  const double age = std::chrono::duration<double>(now - began).count();
  const std::string waited = fmt::format("{} waited {:.0f} s for ", name, age);
  if (!workers.empty()) {
    return fmt::format("{}worker {}{}", waited, fmt::join(workers, ", "),
                       are_deliveries ? " to receive what was sent" : "");
  }
  if (!servers.empty()) return fmt::format("{}{}", waited, fmt::join(servers, ", "));
  // No request is open: what is left of the operation is encoding, decoding, or a device.
  return waited + "this worker's own codec threads";
}

}  // namespace gradwire::kvstore
