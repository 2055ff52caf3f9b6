// The scheduler of a job over ZeroMQ: the process where nodes find each other, and that tells all of them
// when one has died.
//
// Threading: any thread. A thread of its own does the work, and calls witness and log of the options.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "transport/zmq/zmq_messenger.h"

namespace gradwire::transport {

/// Serves rendezvous, exchanges and liveness from a thread of its own. Listens at options.scheduler (port 0
/// or * picks one; listening.h) and takes workers, servers, the timeouts, max_frame_bytes and log from the
/// options. The destructor ends a job that is not over, and notifies every node. With servers = 0 or
/// servers_optional it also serves a job of node pairs.
class Scheduler {
 public:
  explicit Scheduler(const ZmqOptions& options);
  ~Scheduler();
  /// Where it listens, its address and port filled in; with the name that it was given where it listens on
  /// all interfaces because that name is another address elsewhere (listening.h).
  std::string endpoint() const;
  /// The numeric address on which it listens; "*": on all interfaces.
  std::string address() const;
  /// The options of a node in this process, which joins this scheduler's job.
  ZmqOptions beside(ZmqOptions node) const;
  /// Returns when all workers said goodbye. Throws TimeoutError (rendezvous) or TransportError (a node
  /// failed).
  void wait();
  /// As wait(), for at most timeout; returns false when the job is not over yet.
  bool wait_for(std::chrono::milliseconds timeout);
  /// Makes wait() throw TransportError(text) after telling every node.
  void fail(const std::string& text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradwire::transport
