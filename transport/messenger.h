// Messenger moves frames between the ranks of one job and detects which of them are dead.
//
// Threading: any thread may call every method. A Sink is called from the Messenger's one I/O thread. It must
// return at once (queue the frame and leave), and must not call exchange() or leave() from there. What it
// throws fails the job.
// Lifetime: the Sink outlives the Messenger or is detached with detach(). The destructor joins the I/O
// thread.
// Failure: the first cause is final. Sink::on_failure gets it once, and every later send() and exchange()
// throws it as TransportError.
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

/// A peer or the network failed. Names the peer, and what was pending.
class TransportError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The members of a job that continues after a death have changed or are about to: one died, or newcomers
/// wait. Its nodes leave and join again (ZmqOptions::on_failure).
class MembershipChanged : public TransportError {
 public:
  using TransportError::TransportError;
};

/// The workers' calls can never match: each waits for another in a call that the other does not make. It is
/// a misuse by the job as a whole, and the job has failed with it.
class CallMismatch : public TransportError {
 public:
  using TransportError::TransportError;
};

/// A deadline passed. Names what was awaited, and from which ranks.
class TimeoutError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Whether a worker that asks for another generation joins it. Part of the wire format, never renumber.
enum class Parting : std::uint64_t {
  kStays = 0,
  kLeaves = 1,  ///< it has failed by itself
};

/// What a job does when one of its nodes dies.
enum class OnFailure : std::uint8_t {
  kAbort,     ///< ends, on every rank
  kContinue,  ///< continues with the others, and admits new workers, if the remaining workers allow it
};

struct World {
  std::uint32_t workers = 1;
  std::uint32_t servers = 0;
  std::uint64_t epoch = 0;
  std::uint32_t replicas = 0;    ///< 1: each server has a mirror (mirrors.h)
  std::uint32_t generation = 1;  ///< of the job, counted from 1
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
  /// bytes. Nobody has compared them with their checksums yet (frame.h).
  virtual void on_frames(Node from, std::vector<Frame> frames) = 0;
  /// Reports that the job has failed; text names the rank and role at fault.
  virtual void on_failure(const std::string& text) = 0;
  /// Reports that the job continues with other members, and that this node has to join again; text says why.
  /// By default that is a failure.
  virtual void on_membership_changed(const std::string& text) { on_failure(text); }
  /// Reports that the job has failed because the workers' calls can never match. By default that is a
  /// failure like any other.
  virtual void on_call_mismatch(const std::string& text) { on_failure(text); }
  /// Asks which of these rounds (words) this worker has begun. Answer by Messenger::report_wait().
  virtual void on_question(const std::set<std::string>& /*rounds*/) {}
  /// Reports that a peer has left and sends nothing more. error: of a peer that an error has ended, that
  /// error (Messenger::note_error); otherwise empty.
  virtual void on_goodbye(Node peer, const std::string& error) = 0;
  /// Reports that a server has died and the job continues: `mirror` serves in its place. Nothing comes from
  /// the dead server any more, and what was sent to it may be lost. Only where World::replicas says so.
  virtual void on_departure(Node /*server*/, Node /*mirror*/) {}
};

class Messenger {
 public:
  virtual ~Messenger() = default;
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  virtual Node self() const = 0;
  virtual World world() const = 0;
  /// The peer to which frames stay in the process's memory, if there is one (node_pair.h). They need no
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
  /// Whether send() computes the checksum of a payload that has none, for some peer. A caller that sends one
  /// payload to several peers then computes it first (Buffer::seal), once.
  virtual bool seals_payloads() const { return false; }
  /// Whether frames may be lost while the job continues (faulty_messenger.h). A node that leaves may then be
  /// asked for its last answers again.
  virtual bool loses_frames() const { return false; }

  /// Gives blob to all workers and returns every worker's blob in rank order. A collective of the workers:
  /// the n-th call of each belongs to the same exchange. Throws TimeoutError naming the ranks that did not
  /// come, TransportError when one has left the job, CallMismatch when one is in an exchange of another
  /// name, or waits in another call. Each of these fails the job, except that a worker has left.
  virtual std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                            std::chrono::milliseconds timeout) = 0;

  /// Reports to the job's coordinator what this worker waits in, so that it can find workers that wait for
  /// each other (wait_graph.h). Every rank's Sink then gets a call mismatch. Never blocks. No-op on a node
  /// without a coordinator.
  virtual void report_wait(const WaitReport&) {}
  /// How many exchanges this worker has begun: the last has that number less one.
  virtual std::uint64_t exchanges() const = 0;
  /// Declares the whole job failed; every rank's Sink gets text. For a fault that no peer can survive.
  virtual void fail(const std::string& text) = 0;
  /// How many workers wait to be admitted to the job, by the last heartbeat.
  virtual std::uint32_t newcomers() const { return 0; }
  /// Ends this generation of a job that continues after deaths: every rank's Sink gets text as a change of
  /// membership, and joins again. A worker that says kLeaves does not join: its own calls fail from then on,
  /// and the others continue without it. Throws std::logic_error where jobs end with the first failure.
  virtual void regroup(const std::string&, Parting) {
    throw std::logic_error(
        "regroup: this job ends with its first failure; start it with on_failure=continue");
  }
  /// Makes the coming goodbye say that an error ends this node: one line, for people; long lines are cut.
  /// Nodes that still wait for this node get it.
  virtual void note_error(const std::string& error) = 0;
  /// Says goodbye and flushes what is queued, for at most timeout. Then send() throws, and this node
  /// reads nothing more of what it was given to send. Idempotent. The destructor leaves too, where this was
  /// not called.
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
