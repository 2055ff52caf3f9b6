// UnauthenticatedPeers limits connections that belong to no member to one reply each. A peer that never
// reads could otherwise grow the send queue, which libzmq keeps without a limit.
//
// Threading: one thread at a time.
#pragma once

#include <set>

namespace gradwire::transport {

class UnauthenticatedPeers {
 public:
  /// A connection has been accepted. Its descriptor may have belonged to an earlier one.
  void accepted(int fd) { answered_.erase(fd); }
  /// Whether a message of this connection is to be answered: once.
  bool may_be_answered(int fd) { return answered_.insert(fd).second; }

 private:
  std::set<int> answered_;  // no more than there are descriptors
};

}  // namespace gradwire::transport
