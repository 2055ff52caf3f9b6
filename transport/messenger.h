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
#include <set>
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

/// The members of a job that goes on have changed, or are to: one has died, or newcomers wait. Its nodes
/// leave and join again (ZmqOptions::on_failure).
class MembershipChanged : public TransportError {
 public:
  using TransportError::TransportError;
};

/// The workers' calls do not fit together: each waits for another in a call that the other does not make.
/// That is misuse, but of the job: it has failed with it.
class CallMismatch : public TransportError {
 public:
  using TransportError::TransportError;
};

/// A deadline passed: says what was awaited, and from whom.
class TimeoutError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Whether who asks for another generation is to be in it. Part of the wire format, never renumber.
enum class Parting : std::uint64_t {
  kStays = 0,
  kLeaves = 1,  ///< it has failed itself
};

/// What a job does when a node of it dies.
enum class OnFailure : std::uint8_t {
  kAbort,     ///< ends, on every rank
  kContinue,  ///< goes on with the others, and takes in new workers, if the workers that are left allow it
};

struct World {
  std::uint32_t workers = 1;
  std::uint32_t servers = 0;
  std::uint64_t epoch = 0;
  std::uint32_t replicas = 0;    ///< 1: each server has a mirror (mirrors.h)
  std::uint32_t generation = 1;  ///< how often the job has met
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

struct WaitReport;

class Sink {
 public:
  virtual ~Sink() = default;
  /// Takes frames that arrived together from one checked, known peer. Payloads begin at a multiple of 8
  /// bytes; nobody has compared them with their checksums yet (frame.h).
  virtual void on_frames(Node from, std::vector<Frame> frames) = 0;
  /// Learns that the job has failed; text names the rank and role at fault.
  virtual void on_failure(const std::string& text) = 0;
  /// Learns that the job goes on with other members, which this node has to join anew; text says why. By
  /// default that is a failure.
  virtual void on_membership_changed(const std::string& text) { on_failure(text); }
  /// Learns that the job has failed since the workers' calls do not fit together. By default that is a
  /// failure as any.
  virtual void on_call_mismatch(const std::string& text) { on_failure(text); }
  /// Is asked which of these rounds (words) this worker has begun; answers by Messenger::report_wait().
  virtual void on_question(const std::set<std::string>& /*rounds*/) {}
  /// Learns that a peer has left; nothing more will come from it. error: of a peer that an error has ended
  /// what that was (Messenger::note_error), else empty.
  virtual void on_goodbye(Node peer, const std::string& error) = 0;
  /// Learns that a server has died and the job goes on: `mirror` serves in its place. Nothing comes from it
  /// any more, and what was sent to it may be lost. Only where World::replicas says so.
  virtual void on_departure(Node /*server*/, Node /*mirror*/) {}
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
  /// sender and epoch. Workers reach servers, servers reach workers and, with replicas, the server they
  /// mirror and their own mirror: anything else, and the transport's own kinds, are std::invalid_argument.
  /// What is sent to a peer that has left cleanly, or departed, is dropped.
  virtual void send(Node to, std::vector<Frame> frames) = 0;
  /// Whether send() computes the checksum of a payload that comes without one, to some peer. Who sends one
  /// payload to several then computes it first (Buffer::seal), once.
  virtual bool seals_payloads() const { return false; }
  /// Whether frames may be lost on the way while the job goes on (faulty_messenger.h): then whoever leaves
  /// may be asked for its last answers again.
  virtual bool loses_frames() const { return false; }

  /// Gives blob to all workers and returns every worker's blob in rank order. A collective of the workers:
  /// the n-th call of each meets. Throws TimeoutError naming the ranks that did not come, TransportError when
  /// one has left the job, CallMismatch when one is in one of another name, or waits in another call. The job
  /// fails with it, but where one has left.
  virtual std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                            std::chrono::milliseconds timeout) = 0;

  /// Tells whoever coordinates the job what this worker waits in, so that workers that wait for one another
  /// are found (wait_graph.h): every rank's Sink hears of it as a call mismatch. Never blocks; no-op on a
  /// node that has no coordinator.
  virtual void report_wait(const WaitReport&) {}
  /// How many exchanges this worker has begun: the last has that number less one.
  virtual std::uint64_t exchanges() const = 0;
  /// Declares the whole job failed; every rank's Sink hears text. Used for a fault that no peer can survive.
  virtual void fail(const std::string& text) = 0;
  /// Workers that wait to be taken into the job, as last heard.
  virtual std::uint32_t newcomers() const { return 0; }
  /// Ends this generation of a job that goes on: every rank's Sink hears text as a change of membership, and
  /// joins anew; who says kLeaves does not: its own calls fail from then on, and the others go on without it.
  /// Throws std::logic_error where jobs end with the first failure.
  virtual void regroup(const std::string&, Parting) {
    throw std::logic_error(
        "regroup: this job ends with its first failure; start it with on_failure=continue");
  }
  /// Has the goodbye, which is to come, say that an error ends this node: one line, for people, of which long
  /// ones are cut. Who waits for this node in vain hears of it.
  virtual void note_error(const std::string& error) = 0;
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
