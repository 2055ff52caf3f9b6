// A whole job inside one process: one Messenger per rank, each with its own I/O thread, frames moved by
// pointer.
//
// Threading: InprocNetwork's methods may be called from any thread; each Messenger belongs to its rank's
// thread(s). Lifetime: Messengers may outlive the network object.
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
