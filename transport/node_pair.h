// NodePair is the two nodes of one process in placement peers: a worker, and the server of its shard.
//
// Threading: as Messenger, but two threads call a Sink: the I/O thread, and the other node's sending thread,
// which hands over frames between the two.
// Failure: what the two send each other arrives even after the job has failed. If one of them gives up, by
// fail(), both do.
#pragma once

#include <memory>

#include "transport/messenger.h"

namespace gradwire::transport {

/// Both have the same rank, so that every worker knows which server is its own. `world().servers` is
/// `world().workers`.
struct NodePair {
  std::unique_ptr<Messenger> worker;
  std::unique_ptr<Messenger> server;
};

/// Lets frames between the two stay in memory: they are not copied, not counted, and never on a socket. What
/// the receiver keeps of a payload is the sender's memory. `Messenger::local_peer` names that peer.
/// Everything else goes through the given messengers. Throws std::invalid_argument unless they are a worker
/// and the server of its rank, of one job.
NodePair colocate(NodePair pair);

}  // namespace gradwire::transport
