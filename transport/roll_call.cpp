#include "transport/roll_call.h"

#include <algorithm>
#include <set>

#include "transport/nodes.h"

namespace gradwire::transport {
namespace {

std::string who(const Hello& hello) { return hello.host + ", pid " + std::to_string(hello.pid); }

const char* plural(Role role) { return role == Role::kServer ? " servers" : " workers"; }

}  // namespace

std::string describe(Node node, const Hello& hello) { return to_string(node) + " (" + who(hello) + ")"; }

std::optional<std::string> RollCall::take(const std::string& peer, const Hello& hello) {
  const auto known = std::ranges::find(arrivals_, peer, &Arrival::peer);
  if (known != arrivals_.end()) {
    if (known->hello == hello) return std::nullopt;
    return "roll call: " + who(hello) + " has changed what it says about itself; leave and come again";
  }
  if (auto why = objection(hello)) return why;
  arrivals_.push_back({peer, hello});
  return std::nullopt;
}

void RollCall::forget(const std::string& peer) {
  std::erase_if(arrivals_, [&](const Arrival& arrival) { return arrival.peer == peer; });
}

std::optional<std::string> RollCall::objection(const Hello& hello) const {
  const std::string wanted = hello.rank ? to_string(Node{hello.role, *hello.rank})
                                        : (hello.role == Role::kServer ? "a server" : "a worker");
  const std::string prefix = "roll call: " + wanted + " (" + who(hello) + ") ";
  const auto differs = [&](const char* setting, std::uint64_t given, std::uint64_t expected) {
    return prefix + "says " + setting + "=" + std::to_string(given) + " where the scheduler has " + setting +
           "=" + std::to_string(expected) + "; start all nodes with the same settings";
  };
  if (hello.version != kVersion) return differs("version", hello.version, kVersion);
  if (hello.workers != workers_) return differs("workers", hello.workers, workers_);
  if (hello.servers != servers_) return differs("servers", hello.servers, servers_);
  const std::uint32_t size = size_of(hello.role);
  const std::string have = std::to_string(size) + plural(hello.role);
  if (hello.rank && *hello.rank >= size) {
    return prefix + "is outside a job of " + have + "; ranks are counted from 0";
  }
  if (hello.role == Role::kServer && hello.endpoint.empty()) return prefix + "gave no endpoint";
  const auto same_role = [&](const Arrival& arrival) { return arrival.hello.role == hello.role; };
  for (const Arrival& arrival : arrivals_) {
    if (same_role(arrival) && hello.rank && arrival.hello.rank == hello.rank) {
      return prefix + "is here already, as " + who(arrival.hello) + "; give every node a rank of its own";
    }
  }
  if (std::ranges::count_if(arrivals_, same_role) >= static_cast<std::ptrdiff_t>(size)) {
    return prefix + "is one too many: all " + have + " are here";
  }
  return std::nullopt;
}

std::vector<RollCall::Member> RollCall::members() const {
  std::set<Node> taken;
  for (const Arrival& arrival : arrivals_) {
    if (arrival.hello.rank) taken.insert({arrival.hello.role, *arrival.hello.rank});
  }
  std::vector<Member> members;
  for (const Arrival& arrival : arrivals_) {
    Node node{arrival.hello.role, arrival.hello.rank.value_or(0)};
    if (!arrival.hello.rank) {
      while (!taken.insert(node).second) ++node.rank;
    }
    members.push_back({arrival.peer, node, arrival.hello});
  }
  return members;
}

std::vector<Node> RollCall::missing() const {
  std::set<Node> absent;
  for (std::uint32_t rank = 0; rank < servers_; ++rank) absent.insert({Role::kServer, rank});
  for (std::uint32_t rank = 0; rank < workers_; ++rank) absent.insert({Role::kWorker, rank});
  for (const Member& member : members()) absent.erase(member.node);
  return {absent.begin(), absent.end()};
}

std::string RollCall::awaited() const {
  return list_nodes(missing()) + " (" + std::to_string(arrivals_.size()) + " of " +
         std::to_string(workers_ + servers_) + " nodes are here)";
}

}  // namespace gradwire::transport
