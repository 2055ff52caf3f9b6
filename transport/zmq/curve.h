// CurveZMQ on a job's connections: sockets that admit members only, and the authenticator that identifies
// them.
//
// Threading: as ZmqSocket: one thread at a time.
#pragma once

#include "transport/zmq/job_key.h"
#include "transport/zmq/zmq_socket.h"

namespace gradwire::transport {

/// Requires the peers of later connects to be members, and proves to them that this node is one.
void show_membership(ZmqSocket& socket, const JobKey& key);

/// Lets members in and nobody else: the handler of ZAP (ZeroMQ RFC 27), of which a context has one. Where it
/// does not answer, nobody is let in: poll its socket, and answer() when it has something.
class ZapAuthenticator {
 public:
  ZapAuthenticator(const ZmqContext& context, const JobKey& key);
  /// What the socket, of the same context, binds from here on takes members alone. What it has bound before
  /// stays as it is.
  void guard(ZmqSocket& socket) const;
  /// Answers what has been asked so far.
  void answer();
  void* get() const noexcept { return socket_.get(); }

 private:
  ZmqSocket socket_;
  JobKey key_;
};

}  // namespace gradwire::transport
