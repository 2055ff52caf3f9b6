// UnauthenticatedPeers knows which connections that are no member's have had their one answer. Whoever asks
// and never reads would otherwise fill this process's memory with answers, which libzmq keeps for him without
// a limit.
//
// Threading: one thread at a time.
#pragma once

#include <set>

namespace gradwire::transport {

class UnauthenticatedPeers {
 public:
  /// A connection has been accepted, with a descriptor that may have been another's.
  void accepted(int fd) { answered_.erase(fd); }
  /// Whether a message of this connection is to be answered: once.
  bool may_be_answered(int fd) { return answered_.insert(fd).second; }

 private:
  std::set<int> answered_;  // no more than there are descriptors
};

}  // namespace gradwire::transport
