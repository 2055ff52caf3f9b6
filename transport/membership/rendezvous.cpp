#include "transport/membership/rendezvous.h"

#include <algorithm>
#include <set>
#include <utility>

#include "transport/nodes.h"

namespace gradwire::transport {
namespace {

const char* plural(Role role) { return role == Role::kServer ? " servers" : " workers"; }

}  // namespace

std::string host_and_pid(const Hello& hello) { return hello.host + ", pid " + std::to_string(hello.pid); }

std::string describe(Node node, const Hello& hello) {
  // People know the process as the worker that they started, and not as the server inside it.
  if (!hello.pair.empty()) node.role = Role::kWorker;
  return to_string(node) + " (" + host_and_pid(hello) + ")";
}

std::optional<std::string> Rendezvous::take(const std::string& peer, const Hello& hello) {
  const auto known = std::ranges::find(arrivals_, peer, &Arrival::peer);
  if (known != arrivals_.end()) {
    // A node repeats its hello until the roster comes: most repetitions are of nodes that wait for others.
    if (known->hello == hello) return std::nullopt;
    return "rendezvous: " + host_and_pid(hello) +
           " has changed what it says about itself; leave and come again";
  }
  if (auto why = objection(hello)) return why;
  // It stays connected, and the scheduler ends it with the job. As an arrival it would count as a node.
  if (is_spare(hello)) return std::nullopt;
  // The first node of a pair decides for all: dedicated servers that came before it become spare.
  if (!hello.pair.empty() && !std::exchange(pairs_, true))
    std::erase_if(arrivals_, [](const Arrival& arrival) { return is_dedicated(arrival.hello); });
  arrivals_.push_back({peer, hello});
  return std::nullopt;
}

void Rendezvous::forget(const std::string& peer) {
  std::erase_if(arrivals_, [&](const Arrival& arrival) { return arrival.peer == peer; });
}

std::optional<std::string> Rendezvous::objection(const Hello& hello) const {
  const std::string wanted = hello.rank ? to_string(Node{hello.role, *hello.rank})
                                        : (hello.role == Role::kServer ? "a server" : "a worker");
  const std::string prefix = "rendezvous: " + wanted + " (" + host_and_pid(hello) + ") ";
  const auto differs = [&](const char* setting, std::uint64_t given, std::uint64_t expected) {
    return prefix + "says " + setting + "=" + std::to_string(given) + " where the scheduler has " + setting +
           "=" + std::to_string(expected) + "; start all nodes with the same settings" +
           (on_failure_ == OnFailure::kContinue ? ", and add others once these are here" : "");
  };
  // First of all: the fields that follow may mean something else in another version.
  if (hello.version != kVersion) return differs("version", hello.version, kVersion);
  if (hello.workers != workers_) return differs("workers", hello.workers, workers_);
  // A member's name is given exactly where the job goes on after deaths, so it tells which of the two the
  // node expects. Both in one job would leave nodes waiting for a generation that never comes.
  if (hello.member.empty() == (on_failure_ == OnFailure::kContinue)) {
    const auto word = [](bool abort) { return abort ? "abort" : "continue"; };
    return prefix + "says on_failure=" + word(hello.member.empty()) +
           " where the scheduler has on_failure=" + word(on_failure_ == OnFailure::kAbort) +
           "; start all nodes with the same settings";
  }
  // Servers that nobody will use need not agree with the workers' number of servers and replicas.
  if (is_spare(hello)) return std::nullopt;
  if (const auto why = mixture(hello)) return prefix + *why;
  // Each worker of a job of pairs hosts one server, so such a worker knows as many servers as workers.
  const std::uint32_t expected_servers = hello.pair.empty() ? servers_ : workers_;
  if (hello.replicas != replicas_) return differs("replicas", hello.replicas, replicas_);
  if (hello.servers != expected_servers) return differs("servers", hello.servers, expected_servers);
  const std::uint32_t size = hello.pair.empty() ? size_of(hello.role) : workers_;
  const std::string have = std::to_string(size) + plural(hello.role);
  if (hello.rank && *hello.rank >= size) {
    return prefix + "is outside a job of " + have + "; ranks are counted from 0";
  }
  // The roster has a line for each server, and workers could not connect to an empty one.
  if (hello.role == Role::kServer && hello.endpoint.empty()) return prefix + "gave no endpoint";
  const auto same_role = [&](const Arrival& arrival) {
    return arrival.hello.role == hello.role && is_dedicated(arrival.hello) == is_dedicated(hello);
  };
  for (const Arrival& arrival : arrivals_) {
    // A pair's name is random and occurs once for each role. A second worker with it would share the server's
    // rank.
    const bool same_pair = !hello.pair.empty() && arrival.hello.pair == hello.pair;
    if (same_role(arrival) && (same_pair || (hello.rank && arrival.hello.rank == hello.rank))) {
      return prefix + "is here already, as " + host_and_pid(arrival.hello) +
             "; give every node a rank of its own";
    }
    // Later generations find a member by its name alone. Its hosted server has the same one, so roles are
    // compared.
    if (same_role(arrival) && !hello.member.empty() && arrival.hello.member == hello.member) {
      return prefix + "has the member name of " + host_and_pid(arrival.hello) +
             "; give every process its own";
    }
  }
  // Last, because the checks above give a better reason to a node that is also one too many.
  if (std::ranges::count_if(arrivals_, same_role) >= static_cast<std::ptrdiff_t>(size)) {
    return prefix + "is one too many: all " + have + " are here";
  }
  return std::nullopt;
}

std::optional<std::uint32_t> Rendezvous::rank_of_pair(const std::string& pair,
                                                      const std::vector<Member>& members) const {
  for (const Member& member : members) {
    if (member.node.role == Role::kWorker && member.hello.pair == pair) return member.node.rank;
  }
  return std::nullopt;
}

// Why a node that does, or does not, host a server cannot join those that are here.
std::optional<std::string> Rendezvous::mixture(const Hello& hello) const {
  const bool hosts = !hello.pair.empty();
  // The servers that the job was started with would wait for workers that never use them.
  if (hosts && !servers_optional_) {
    return "hosts a server of its own, but the job was started with " + std::to_string(servers_) +
           " servers; start it without them (-s 0), or use a store such as dist_sync";
  }
  const auto first =
      std::ranges::find_if(arrivals_, [](const Arrival& arrival) { return !is_dedicated(arrival.hello); });
  // The first node that decides is the measure. A dedicated server does not decide: it may turn out to be
  // spare.
  if (is_dedicated(hello) || first == arrivals_.end() || !first->hello.pair.empty() == hosts)
    return std::nullopt;
  return std::string(hosts ? "hosts a server of its own" : "hosts no server") + ", unlike " +
         host_and_pid(first->hello) + "; give every rank the same store";
}

std::vector<Rendezvous::Member> Rendezvous::members() const {
  const auto is_hosted = [](const Hello& hello) {
    return hello.role == Role::kServer && !hello.pair.empty();
  };
  // Wanted ranks first, whatever the order of arrival: a node without a wish must not take a rank that
  // another asked for.
  std::set<Node> taken;
  for (const Arrival& arrival : arrivals_) {
    if (arrival.hello.rank) taken.insert({arrival.hello.role, *arrival.hello.rank});
  }
  std::vector<Member> members;
  for (const Arrival& arrival : arrivals_) {
    // In the second pass: a hosted server may have arrived before the worker whose rank it gets.
    if (is_hosted(arrival.hello)) continue;
    Node node{arrival.hello.role, arrival.hello.rank.value_or(0)};
    if (!arrival.hello.rank) {
      // It ends below the job's size, since objection() lets in no more nodes of a role than there are ranks.
      while (!taken.insert(node).second) ++node.rank;
    }
    members.push_back({arrival.peer, node, arrival.hello});
  }
  for (const Arrival& arrival : arrivals_) {
    if (!is_hosted(arrival.hello)) continue;
    // Without its worker it has no rank yet, and its absence from the list keeps the rendezvous incomplete.
    if (const auto rank = rank_of_pair(arrival.hello.pair, members)) {
      members.push_back({arrival.peer, {Role::kServer, *rank}, arrival.hello});
    }
  }
  return members;
}

std::vector<Node> Rendezvous::missing() const {
  std::set<Node> absent;
  for (std::uint32_t rank = 0; rank < servers(); ++rank) absent.insert({Role::kServer, rank});
  for (std::uint32_t rank = 0; rank < workers_; ++rank) absent.insert({Role::kWorker, rank});
  for (const Member& member : members()) absent.erase(member.node);
  return {absent.begin(), absent.end()};
}

std::string Rendezvous::awaited() const {
  const auto here_of = [](std::size_t here, std::uint32_t all, const char* what) {
    return " (" + std::to_string(here) + " of " + std::to_string(all) + " " + what + " are here)";
  };
  // In a job of pairs people started workers only, so a missing hosted server is reported as its worker.
  if (!pairs_) return list_nodes(missing()) + here_of(arrivals_.size(), workers_ + servers(), "nodes");
  std::vector<std::uint32_t> ranks;  // of workers who, or whose servers, are missing
  for (const Node node : missing()) ranks.push_back(node.rank);
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return list_workers(ranks) + here_of(workers_ - ranks.size(), workers_, "workers");
}

}  // namespace gradwire::transport
