#include "transport/zmq/scheduler_peers.h"

#include <algorithm>

namespace gradwire::transport {

std::string arrival_name(const Hello& hello) {
  return std::string(hello.role == Role::kServer ? "a server" : "a worker") + " (" + hello.host + ", pid " +
         std::to_string(hello.pid) + ")";
}

std::string worker_of(const SchedulerPeers& peers, std::uint32_t rank) {
  const auto found = std::ranges::find_if(peers, [rank](const auto& entry) {
    return entry.second.counts() && entry.second.node == Node{Role::kWorker, rank};
  });
  return found == peers.end() ? std::string() : found->first;
}

bool have_all_left(const SchedulerPeers& peers, Role role) {
  return std::ranges::none_of(
      peers, [role](const auto& entry) { return entry.second.node.role == role && entry.second.counts(); });
}

bool have_all_workers_left_but(const SchedulerPeers& peers, const std::set<std::string>& members) {
  bool has_anybody = false;
  for (const auto& [id, peer] : peers) {
    if (peer.standing != Standing::kMember || peer.node.role != Role::kWorker) continue;
    if (!peer.left && !members.contains(peer.hello.member)) return false;
    has_anybody = has_anybody || peer.left;
  }
  return has_anybody;
}

}  // namespace gradwire::transport
