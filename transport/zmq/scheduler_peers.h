// SchedulerPeers are the nodes that a scheduler knows, by the routing ids of their connections.
//
// Threading: values and pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "transport/frame.h"
#include "transport/membership/control.h"

namespace gradwire::transport {

enum class Standing : std::uint8_t {
  kMember,   ///< of this generation, or of the first rendezvous
  kSpare,    ///< a server that nobody will use: it waits until it is ended
  kWaiting,  ///< for the next generation
  kFormer,   ///< of an earlier generation, which it may not know yet to have ended
};

struct SchedulerPeer {
  Node node;
  std::string name;  ///< "worker 1 (host, pid 123)"
  int fd = -1;
  bool left = false;
  bool dedicated = false;  ///< a server of its own, hosted by no worker
  std::string farewell;    ///< why it is to end while the job goes on; else empty
  Standing standing = Standing::kMember;
  Hello hello;

  bool counts() const { return standing == Standing::kMember && !left; }
  bool hears_news() const { return counts() || standing == Standing::kSpare; }
};

using SchedulerPeers = std::map<std::string, SchedulerPeer>;

/// Names a node that has no rank yet: "a worker (host, pid 123)".
std::string arrival_name(const Hello& hello);

/// The routing id of a worker that counts; empty: there is none of that rank.
std::string worker_of(const SchedulerPeers& peers, std::uint32_t rank);

bool have_all_left(const SchedulerPeers& peers, Role role);

/// Whether every worker has left that is not one of these members, and at least one has.
bool have_all_workers_left_but(const SchedulerPeers& peers, const std::set<std::string>& members);

}  // namespace gradwire::transport
