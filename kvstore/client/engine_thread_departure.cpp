// EngineThread: a server has left; or it has died, and its mirror serves in its place (failover.h). And what
// a worker awaits before it leaves: that no server's death can lose what it has sent.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kvstore/client/engine_tensor.h"

namespace gradwire::kvstore {

using transport::Node;
using transport::Role;

void EngineThread::on_goodbye(Node peer, const std::string& error) {
  if (peer.role != Role::kServer) return;
  loop_->post([this, rank = peer.rank, error] { lose_server(rank, error); });
}

/// A worker that takes its server along when it leaves has done all its rounds: only what still needs it
/// fails.
void EngineThread::lose_server(std::uint32_t rank, const std::string& error) {
  for (const std::uint32_t dead : failover_.served_by(rank)) lose_server(dead, error);
  failover_.leave(rank, error);
  const auto awaits = [rank](const Tensor* tensor) {
    return std::any_of(tensor->parts.begin(), tensor->parts.end(), [rank](const PartState& state) {
      return !state.answered && state.part.server == rank;
    });
  };
  const bool is_needed = !rounds_.servers_in_workers || mail_.awaits_server(rank) ||
                         rows_.awaits_server(rank) || std::any_of(active_.begin(), active_.end(), awaits);
  if (is_needed)
    return fail_all(std::make_exception_ptr(transport::TransportError(failover_.describe(rank))));
  commands_.lose_server(rank);
}

/// Asks at once: the round may take as long as its slowest worker.
Ticket EngineThread::handed_over() {
  Ticket ticket;
  loop_->post([this, ticket] {
    for (Tensor* tensor : active_) {
      for (std::size_t p = 0; p < tensor->parts.size(); ++p) {
        const PartState& state = tensor->parts[p];
        if (!state.answered && !state.is_held) ask(*tensor, p);
      }
    }
    waiting_handed_over_.push_back(ticket);
    tell_handed_over();
  });
  return ticket;
}

bool EngineThread::is_handed_over(const Tensor& tensor) const {
  const auto is_known = [](const PartState& state) { return state.answered || state.is_held; };
  return tensor.waiting.empty() && tensor.jobs == 0 && std::ranges::all_of(tensor.parts, is_known);
}

void EngineThread::tell_handed_over() {
  if (!std::ranges::all_of(active_, [this](const Tensor* tensor) { return is_handed_over(*tensor); })) return;
  for (const Ticket& ticket : std::exchange(waiting_handed_over_, {})) ticket.succeed();
}

void EngineThread::on_departure(Node server, Node mirror) {
  loop_->post([this, rank = server.rank, mirror = mirror.rank] { replace_server(rank, mirror); });
}

/// Asks at once for all that the server still owed: what it was sent, and what it answered, may be lost on
/// the way. Its mirror knows each request that was answered to anybody, and tells what it lacks.
void EngineThread::replace_server(std::uint32_t rank, std::uint32_t mirror) {
  if (!failover_.replace(rank, mirror)) return;
  notify(
      fmt::format("server {} has died; its mirror, server {}, serves in its place and is mirrored for it by "
                  "nobody: start the job again from a checkpoint when it suits",
                  rank, mirror));
  outbox_.replace(rank, mirror);
  for (Tensor* tensor : active_) {
    for (std::size_t p = 0; p < tensor->parts.size(); ++p) {
      const PartState& state = tensor->parts[p];
      if (!state.answered && state.part.server == rank) ask(*tensor, p);
    }
  }
  commands_.ask_again(rank);
  mail_.ask_again(rank);
  rows_.ask_again(rank);
}

}  // namespace gradwire::kvstore
