#include "kvstore/client/failover.h"

namespace gradwire::kvstore {

using transport::FrameHeader;
using transport::Node;
using transport::Role;

bool Failover::replace(std::uint32_t server, std::uint32_t mirror) {
  const std::lock_guard lock(mutex_);
  return replaced_.emplace(server, mirror).second;
}

std::vector<std::uint32_t> Failover::served_by(std::uint32_t mirror) const {
  std::vector<std::uint32_t> servers;
  for (const auto& [dead, by] : replaced_) {
    if (by == mirror) servers.push_back(dead);
  }
  return servers;
}

std::map<std::uint32_t, std::uint32_t> Failover::replaced() const {
  const std::lock_guard lock(mutex_);
  return replaced_;
}

std::optional<Node> Failover::speaker_of(Node from, const FrameHeader& header) const {
  if (!header.on_behalf) {
    const bool is_dead = from.role == Role::kServer && replaced_.contains(from.rank);
    return is_dead ? std::nullopt : std::optional(from);
  }
  const auto replaced = replaced_.find(header.on_behalf->rank);
  // A mirror may know of the death before this worker does. Its frames are dropped until then: what they
  // answer is asked for again when the departure comes.
  const bool may = from.role == Role::kServer && header.on_behalf->role == from.role &&
                   replaced != replaced_.end() && replaced->second == from.rank;
  return may ? header.on_behalf : std::nullopt;
}

std::string Failover::describe(std::uint32_t server) const {
  const auto found = left_.find(server);
  if (found != left_.end() && !found->second.empty())
    return name(server) + " failed: " + found->second + "; see its traceback";
  return name(server) + " left the job while this worker still needs it";
}

}  // namespace gradwire::kvstore
