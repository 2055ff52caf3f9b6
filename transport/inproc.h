// A whole job inside one process: one Messenger per rank, each with its own delivery thread. Payloads are
// copied once, so that a sender's memory is its own again as soon as with a socket.
//
// Threading: InprocNetwork's methods may be called from any thread.
// Lifetime: Messengers may outlive the network object.
#pragma once

#include <memory>

#include "transport/messenger.h"

namespace gradwire::transport {

class InprocHub;

class InprocNetwork {
 public:
  InprocNetwork(std::uint32_t workers, std::uint32_t servers);

  /// Takes the Messenger of one node. Each node can be taken once; throws std::invalid_argument otherwise.
  std::unique_ptr<Messenger> connect(Node node);

 private:
  std::shared_ptr<InprocHub> hub_;  // owners: the network and every Messenger it handed out
};

}  // namespace gradwire::transport
