// Messenger moves frames between the ranks of one job and knows which of them are alive.
//
// Threading: every method may be called from any thread. A Sink is called from the Messenger's one I/O
//   thread: it must return at once (queue the frame and leave) and must not call exchange() or leave()
//   from there. What it throws fails the job.
// Lifetime: the Sink outlives the Messenger or is detached with detach(). The destructor joins the I/O
//   thread.
// Failure: the first cause is final. It is handed to Sink::on_failure once, and thrown as TransportError
//   by every later send() and exchange().
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "transport/frame.h"

namespace gradwire::transport {

/// A peer or the network failed: says who, and what was pending.
class TransportError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A deadline passed: says what was awaited, and from whom.
class TimeoutError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct World {
  std::uint32_t workers = 1;
  std::uint32_t servers = 0;
  std::uint64_t epoch = 0;
  bool operator==(const World&) const = default;
};

/// Bytes and frames seen at the socket, counted with headers. Per peer.
struct Counters {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
};

struct PeerCounters {
  Node peer;
  Counters counters;
};

class Sink {
 public:
  virtual ~Sink() = default;
  /// Takes frames that arrived together from one checked, known peer. Payloads begin at a multiple of 8
  /// bytes; nobody has compared them with their checksums yet (frame.h).
  virtual void on_frames(Node from, std::vector<Frame> frames) = 0;
  /// Learns that the job has failed; text names the rank and role at fault.
  virtual void on_failure(const std::string& text) = 0;
  /// Learns that a peer has left cleanly; nothing more will come from it.
  virtual void on_goodbye(Node peer) = 0;
};

class Messenger {
 public:
  virtual ~Messenger() = default;
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  virtual Node self() const = 0;
  virtual World world() const = 0;
  /// The peer to which frames stay in the process's memory, if there is one (see node_pair.h): they need no
  /// credit.
  virtual std::optional<Node> local_peer() const { return std::nullopt; }

  /// Starts handing arrived frames to sink; what came earlier is handed over first.
  virtual void attach(Sink& sink) = 0;
  /// Returns once no call into the sink is running or will come.
  virtual void detach() = 0;

  /// Queues frames to one peer, to arrive together and after all sent to it before. Never blocks. Fills in
  /// sender and epoch. Workers reach servers, servers reach workers: anything else, and the transport's own
  /// kinds, are std::invalid_argument. What is sent to a peer that has left cleanly is dropped.
  virtual void send(Node to, std::vector<Frame> frames) = 0;
  /// Whether send() computes the checksum of a payload that comes without one, to some peer. Who sends one
  /// payload to several then computes it first (Buffer::seal), once.
  virtual bool seals_payloads() const { return false; }

  /// Gives blob to all workers and returns every worker's blob in rank order. A collective of the workers:
  /// the n-th call of each meets. Throws TimeoutError naming the ranks that did not come, TransportError when
  /// one of them has left the job or is in an exchange of another name (which fails the whole job).
  virtual std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                            std::chrono::milliseconds timeout) = 0;

  /// Declares the whole job failed; every rank's Sink hears text. Used for a fault that no peer can survive.
  virtual void fail(const std::string& text) = 0;
  /// Says goodbye and flushes what is queued, for at most timeout. Then send() throws. Idempotent. The
  /// destructor leaves too, where this was not called.
  virtual void leave(std::chrono::milliseconds timeout) = 0;
  /// After leave(): waits until the process may end without harm to ranks that are still at work, for at most
  /// timeout; returns false when that passed first. Over MPI that is when all have left: MPI ends once, for
  /// all.
  virtual bool outlast(std::chrono::milliseconds) { return true; }

  virtual std::vector<PeerCounters> counters() const = 0;

 protected:
  Messenger() = default;
};

}  // namespace gradwire::transport
