// NodePair is the two nodes that one process has in placement peers: a worker, and the server of its shard.
//
// Threading: as Messenger, but a Sink is called from two threads: the I/O thread, and the other node's
// sending one,
//   on which frames between the two are handed over.
// Failure: what the two send each other arrives even after the job has failed. Where one gives up, by fail(),
//   both do.
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
/// the receiver keeps of a payload, it keeps of the sender's memory. `Messenger::local_peer` tells which that
/// is. Everything else goes through the messengers given. Throws std::invalid_argument unless they are a
/// worker and the server of its rank, of one job.
NodePair colocate(NodePair pair);

}  // namespace gradwire::transport
