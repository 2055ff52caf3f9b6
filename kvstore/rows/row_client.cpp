#include "kvstore/rows/row_client.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "kvstore/wire/answer.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

namespace {

/// Answers repeat their request's number.
bool is_answer_to(const RowRequest& request, const FrameHeader& answer, std::uint32_t server) {
  return request.server == server && request.header.offset == answer.offset;
}

}  // namespace

RowClient::RowClient(std::shared_ptr<Loop> loop, Outbox& outbox, transport::Role server_role,
                     const Patience& patience, Fail fail, StalenessCounts* staleness)
    : loop_(std::move(loop)),
      outbox_(outbox),
      server_role_(server_role),
      patience_(patience),
      fail_(std::move(fail)),
      staleness_(staleness) {}

void RowClient::submit(RowOperation operation) {
  loop_->post([this, operation = std::move(operation)]() mutable {
    if (failure_) return operation.done.fail(failure_);
    const auto [found, is_new] = tables_.try_emplace(operation.requests.front().header.key);
    if (!is_new) return found->second.waiting.push_back(std::move(operation));
    start(found->second, std::move(operation));
  });
}

void RowClient::start(Table& table, RowOperation operation) {
  table.active = {};
  table.active.began = Clock::now();
  for (RowRequest& request : operation.requests)
    table.active.pending.push_back({std::move(request), table.active.began, 0, 0, {}});
  table.active.operation = std::move(operation);
  for (Pending& request : table.active.pending) ask(request);
}

void RowClient::ask(Pending& request) {
  request.asked = Clock::now();
  outbox_.add(request.server, {request.header, request.payload.share()});
}

bool RowClient::handle(transport::Node from, Frame& frame) {
  const FrameHeader& header = frame.header;
  const bool is_refusal =
      header.kind == Kind::kError && header.content == static_cast<std::uint8_t>(Refusal::kRows);
  if (!is_refusal && (header.kind < Kind::kRowInit || header.kind > Kind::kRowWriteState)) return false;
  const auto table = tables_.find(header.key);
  if (table == tables_.end()) return true;  // an answer to a request that was repeated
  Active& active = table->second.active;
  const auto found = std::ranges::find_if(
      active.pending, [&](const Pending& request) { return is_answer_to(request, header, from.rank); });
  if (found == active.pending.end()) return true;
  if (!frame.payload.is_intact()) {
    send_again(active, *found);
    return true;
  }
  switch (header.kind) {
    case Kind::kRowReply:
    case Kind::kRowState:
      if ((header.flags & transport::kFlagNonfinite) != 0) active.operation.done.note_nonfinite();
      active.operation.answers->push_back({from.rank, std::move(frame)});
      answered(table->first, found);
      break;
    case Kind::kRowAck:
      if (staleness_ != nullptr && found->header.kind == Kind::kRowPush)
        staleness_->add(staleness_of(header));
      answered(table->first, found);
      break;
    case Kind::kRowHeld:
      found->awaited = awaited_in(frame);
      break;
    case Kind::kRowMissing:
      send_again(active, *found);
      break;
    default:
      refuse(table->first, *found, payload_text(frame));
  }
  return true;
}

void RowClient::send_again(const Active& active, Pending& request) {
  if (request.resends++ < kMaxResends) return ask(request);
  fail_(std::make_exception_ptr(transport::TransportError(
      fmt::format("{}: what this worker and {} send each other arrives damaged", active.operation.what,
                  transport::to_string({server_role_, request.server})))));
}

void RowClient::answered(std::uint64_t key, std::vector<Pending>::iterator request) {
  Active& active = tables_.at(key).active;
  active.pending.erase(request);
  if (!active.pending.empty()) return;
  const Ticket done = active.operation.done;
  end(key);
  done.succeed();
}

void RowClient::refuse(std::uint64_t key, const Pending& request, const std::string& text) {
  const Active& active = tables_.at(key).active;
  const auto all = fmt::format("{} refused {}: {}", transport::to_string({server_role_, request.server}),
                               active.operation.what, text);
  const bool others_wait = std::ranges::any_of(active.pending, [](const Pending& pending) {
    return pending.header.kind == Kind::kRowPush || pending.header.kind == Kind::kRowInit;
  });
  if (others_wait) return fail_(std::make_exception_ptr(transport::TransportError(all)));
  const bool is_of_state = request.header.kind != Kind::kRowPull;
  const Ticket done = active.operation.done;
  end(key);
  done.fail(is_of_state ? std::make_exception_ptr(std::invalid_argument(all))
                        : std::make_exception_ptr(transport::TransportError(all)));
}

/// Ends the operation in progress and begins the next.
void RowClient::end(std::uint64_t key) {
  Table& table = tables_.at(key);
  if (table.waiting.empty()) {
    tables_.erase(key);
    return;
  }
  RowOperation next = std::move(table.waiting.front());
  table.waiting.pop_front();
  start(table, std::move(next));
}

void RowClient::retry(Clock::time_point now) {
  for (auto& [key, table] : tables_) {
    for (Pending& request : table.active.pending) {
      if (now - request.asked < (request.repetitions == 0 ? patience_.first : patience_.later)) continue;
      ++request.repetitions;
      ask(request);
    }
  }
}

void RowClient::ask_again(std::uint32_t server) {
  for (auto& [key, table] : tables_) {
    for (Pending& request : table.active.pending) {
      if (request.server == server) ask(request);
    }
  }
}

void RowClient::fail_all(const std::exception_ptr& error) {
  failure_ = error;
  for (auto& [key, table] : tables_) {
    table.active.operation.done.fail(error);
    for (const RowOperation& operation : table.waiting) operation.done.fail(error);
  }
  tables_.clear();
}

bool RowClient::awaits_server(std::uint32_t rank) const {
  return std::ranges::any_of(tables_, [rank](const auto& entry) {
    return std::ranges::any_of(entry.second.active.pending,
                               [rank](const Pending& request) { return request.server == rank; });
  });
}

bool RowClient::awaits_workers() const {
  return std::ranges::any_of(tables_, [](const auto& entry) {
    return std::ranges::any_of(entry.second.active.pending,
                               [](const Pending& request) { return !request.awaited.empty(); });
  });
}

RowClient::Clock::time_point RowClient::oldest() const {
  auto oldest = Clock::time_point::max();
  for (const auto& [key, table] : tables_) oldest = std::min(oldest, table.active.began);
  return oldest;
}

std::string RowClient::describe_wait(Clock::time_point now) const {
  std::string what = "rows";
  std::set<std::uint32_t> ranks;
  std::set<std::string> servers;
  for (const auto& [key, table] : tables_) {
    what = table.active.operation.what;
    for (const Pending& request : table.active.pending) {
      ranks.insert(request.awaited.begin(), request.awaited.end());
      servers.insert(transport::to_string({server_role_, request.server}));
    }
  }
  const auto waited = std::chrono::duration<double>(now - oldest()).count();
  if (ranks.empty())
    return fmt::format("{} have waited {:.0f} s for {}", what, waited, fmt::join(servers, ", "));
  return fmt::format("{} have waited {:.0f} s for worker {}", what, waited, fmt::join(ranks, ", "));
}

}  // namespace gradwire::kvstore
