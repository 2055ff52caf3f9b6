#include "kvstore/rows/row_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kvstore/wire/answer.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

RowClient::RowClient(std::shared_ptr<Loop> loop, Outbox& outbox, PendingRequests& pending,
                     transport::Role server_role, const PendingRequests::Patience& patience, Fail fail,
                     StalenessCounts* staleness)
    : loop_(std::move(loop)),
      outbox_(outbox),
      pending_(pending),
      server_role_(server_role),
      patience_(patience),
      fail_(std::move(fail)),
      staleness_(staleness) {}

void RowClient::submit(RowOperation operation) {
  loop_->post([this, operation = std::move(operation)]() mutable {
    if (failure_) return operation.done.fail(failure_);
    const std::uint64_t key = operation.requests.front().header.key;
    const auto [found, is_new] = tables_.try_emplace(key);
    // A pull has to find the push before it applied, and servers do not order requests that a link may lose.
    if (!is_new) return found->second.waiting.push_back(std::move(operation));
    start(key, found->second, std::move(operation));
  });
}

void RowClient::start(std::uint64_t key, Table& table, RowOperation operation) {
  const auto now = Clock::now();
  const auto pending = pending_.begin([what = operation.what] { return what + " have"; }, now);
  table.active = {std::move(operation), {}, pending};
  const auto& requests = table.active.operation.requests;
  table.active.resends.resize(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    // Looked up at each repetition, because the operation lives in the table and not in this closure.
    const auto repeat = [this, key, i] { send(tables_.at(key).active.operation.requests[i]); };
    pending_.add(pending, i, {requests[i].server, patience_, repeat}, now);
    send(requests[i]);
  }
}

void RowClient::send(const RowRequest& request) {
  outbox_.add(request.server, {request.header, request.payload.share()});
}

void RowClient::handle(transport::Node from, Frame& frame) {
  const FrameHeader& header = frame.header;
  const auto table = tables_.find(header.key);
  if (table == tables_.end()) return;  // an answer to a request that was repeated
  Active& active = table->second.active;
  // Answers repeat their request's number.
  const auto found = std::ranges::find_if(active.pending->requests, [&](const auto& entry) {
    const RowRequest& request = active.operation.requests[entry.first];
    return request.server == from.rank && request.header.offset == header.offset;
  });
  if (found == active.pending->requests.end()) return;
  PendingRequests::heard(found->second);
  const std::size_t request = found->first;
  // The answer was lost on its way here. A server answers a repeated request again.
  if (!frame.payload.is_intact()) return send_again(active, request);
  switch (header.kind) {
    case Kind::kRowReply:
    case Kind::kRowState:
      // Any of the servers may have found it, and the ticket is for all of them.
      if ((header.flags & transport::kFlagNonfinite) != 0) active.operation.done.note_nonfinite();
      active.operation.answers->push_back({from.rank, std::move(frame)});
      return answered(table->first, request);
    case Kind::kRowAck:
      if (staleness_ != nullptr && active.operation.requests[request].header.kind == Kind::kRowPush)
        staleness_->add(staleness_of(header));
      return answered(table->first, request);
    case Kind::kRowHeld:
      // Answers a repeated request. A warning can then name who is awaited.
      found->second.is_held = true;
      found->second.awaited = awaited_in(frame);
      return;
    // The request arrived damaged at the server.
    case Kind::kRowMissing:
      return send_again(active, request);
    default:
      return refuse(table->first, request, payload_text(frame));
  }
}

void RowClient::send_again(Active& active, std::size_t request) {
  if (active.resends[request]++ < kMaxResends)
    return PendingRequests::repeat(active.pending->requests.at(request), Clock::now());
  const transport::Node server{server_role_, active.operation.requests[request].server};
  fail_(std::make_exception_ptr(
      transport::TransportError(fmt::format("{}: what this worker and {} send each other arrives damaged",
                                            active.operation.what, transport::to_string(server)))));
}

void RowClient::answered(std::uint64_t key, std::size_t request) {
  const Active& active = tables_.at(key).active;
  pending_.answered(active.pending, request);
  if (!active.pending->requests.empty()) return;
  const Ticket done = active.operation.done;
  end(key);
  done.succeed();
}

void RowClient::refuse(std::uint64_t key, std::size_t request, const std::string& text) {
  const Active& active = tables_.at(key).active;
  const auto& requests = active.operation.requests;
  const auto all =
      fmt::format("{} refused {}: {}", transport::to_string({server_role_, requests[request].server}),
                  active.operation.what, text);
  // While a push of the operation is open, other workers wait for its round, whichever of the requests was
  // refused.
  const bool others_wait = std::ranges::any_of(active.pending->requests, [&](const auto& entry) {
    const Kind kind = requests[entry.first].header.kind;
    return kind == Kind::kRowPush || kind == Kind::kRowInit;
  });
  if (others_wait) return fail_(std::make_exception_ptr(transport::TransportError(all)));
  // Servers refuse a state during a round, or of another table: the caller's mistake, which ends nothing
  // else.
  const bool is_of_state = requests[request].header.kind != Kind::kRowPull;
  const Ticket done = active.operation.done;
  end(key);
  done.fail(is_of_state ? std::make_exception_ptr(std::invalid_argument(all))
                        : std::make_exception_ptr(transport::TransportError(all)));
}

/// Ends the operation in progress and begins the next.
void RowClient::end(std::uint64_t key) {
  Table& table = tables_.at(key);
  pending_.end(table.active.pending);
  if (table.waiting.empty()) {
    // The map has tables with an operation only, so that late answers find none.
    tables_.erase(key);
    return;
  }
  RowOperation next = std::move(table.waiting.front());
  table.waiting.pop_front();
  start(key, table, std::move(next));
}

void RowClient::fail_all(const std::exception_ptr& error) {
  failure_ = error;
  for (auto& [key, table] : tables_) {
    pending_.end(table.active.pending);
    table.active.operation.done.fail(error);
    for (const RowOperation& operation : table.waiting) operation.done.fail(error);
  }
  tables_.clear();
}

}  // namespace gradwire::kvstore
