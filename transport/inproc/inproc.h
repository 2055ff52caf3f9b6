// A whole job inside one process: one Messenger per rank, each with its own delivery thread. Payloads are
// copied once, so a sender may reuse its memory as soon as with a socket.
//
// Threading: any thread may call InprocNetwork's methods.
// Lifetime: Messengers may outlive the network object.
#pragma once

#include <memory>

#include "transport/messenger.h"

namespace gradwire::transport {

class InprocHub;

class InprocNetwork {
 public:
  /// replicas: 1 where each server has a mirror; throws std::invalid_argument as require_mirrors() does.
  InprocNetwork(std::uint32_t workers, std::uint32_t servers, std::uint32_t replicas = 0);

  /// Takes the Messenger of one node. Each node can be taken once; throws std::invalid_argument otherwise.
  std::unique_ptr<Messenger> connect(Node node);
  /// Treats a server as dead, as if its process had been killed at this moment: nothing more comes from it or
  /// reaches it. Its mirror serves in its place, or the job fails.
  void lose(std::uint32_t server);

 private:
  std::shared_ptr<InprocHub> hub_;  // owners: the network and every Messenger it handed out
};

}  // namespace gradwire::transport
