// HostLink connects the workers of one host: a small job of its own, beside the main one. The lowest rank
// among them is their leader, whose process has the one server.
//
// Threading: as Messenger.
// Lifetime: the main job's Messenger outlives the link.
// Failure: the main job watches every process, and names the dead by the rank that people know. So the link
// reports its own findings to the main job only if that has not failed within `patience`. Until then frames
// over it are lost. Likewise the main job says why a leader left, if it was no clean end: its goodbye reaches
// the sink a moment later than it came.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::transport {

class Scheduler;

/// Ranks of the workers, by host: ascending, the hosts in order of their leaders.
using Hosts = std::vector<std::vector<std::uint32_t>>;

/// Groups ranks by what they call their hosts; identities[r] is rank r's. One that is empty is nobody else's.
Hosts group_by_host(std::span<const std::string> identities);
/// The lowest rank of each host, ascending.
std::vector<std::uint32_t> leaders_of(const Hosts& hosts);
/// The ranks on the host of one. Requires that it is on one.
const std::vector<std::uint32_t>& host_of(const Hosts& hosts, std::uint32_t rank);

/// Both nodes have ranks of the main job: workers their own, the server that of the leader. Empty where every
/// worker has a host to itself.
struct HostLink {
  Hosts hosts;
  std::shared_ptr<Scheduler> rendezvous;  ///< the leader's, if one is needed; owner: the holder of the link
  std::unique_ptr<Messenger> worker;
  std::unique_ptr<Messenger> server;  ///< the leader's alone
};

/// Gives a node of a host's job, in which members are workers 0, 1, ... and the server is server 0, the ranks
/// of the main job.
std::unique_ptr<Messenger> with_ranks_of(Messenger& job, std::vector<std::uint32_t> members,
                                         std::unique_ptr<Messenger> node, std::chrono::milliseconds patience);

}  // namespace gradwire::transport
