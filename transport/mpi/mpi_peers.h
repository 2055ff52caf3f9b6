// MpiPeers handles a rank's other ranks: frames, heartbeats, goodbyes, exchanges and failures. Rank 0
// coordinates: it gathers exchanges, and watches the others, which watch it.
//
// Threading: the I/O thread only.
// Lifetime: port, traffic and events outlive it.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/membership/control.h"
#include "transport/membership/exchange_coordinator.h"
#include "transport/membership/liveness.h"
#include "transport/membership/wait_graph.h"
#include "transport/mpi/mpi.h"
#include "transport/mpi/mpi_link.h"
#include "transport/mpi/mpi_rendezvous.h"
#include "transport/traffic.h"

namespace gradwire::transport {

class MpiPeers {
 public:
  using Time = std::chrono::steady_clock::time_point;

  class Events {
   public:
    virtual ~Events() = default;
    /// Frames of the data plane that came together, from a node of another rank.
    virtual void on_frames(Node from, std::vector<Frame> frames) = 0;
    virtual void on_goodbye(Node peer, const std::string& error) = 0;
    virtual void on_exchange_result(std::uint64_t sequence, ExchangeAnswer answer,
                                    std::string_view payload) = 0;
    virtual void on_question(const std::set<std::string>& rounds) = 0;
    /// The job has failed; the other ranks have been notified.
    virtual void on_failure(const std::string& text, FailureCause cause) = 0;
  };

  /// traffic: counts control frames, as the scheduler's.
  MpiPeers(MpiApi& port, const MpiOptions& options, std::span<const MpiEntry> entries, Traffic& traffic,
           Events& events);

  void send(std::uint32_t rank, MpiPacket packet, MpiLink::Sent sent);
  /// error: what ends the node; empty: it has come to its end. sent: called once all other ranks have the
  /// goodbye, and so all that was sent to them before.
  void say_goodbye(Node self, const std::string& error, const MpiLink::Sent& sent);
  /// Takes part in an exchange, or asks after it; payload as kExchange's. The result comes by an event.
  void submit_exchange(std::uint64_t sequence, ExchangeAsk ask, std::string_view payload);
  /// Says what this rank waits in.
  void submit_wait(const WaitReport& report);
  /// Notifies all other ranks that the job has failed. Each rank that receives it forwards it, and sends no
  /// frames after it.
  void spread_failure(const std::string& text, FailureCause cause = FailureCause::kFault);
  /// Whether all have said so that can.
  bool is_failure_known() const { return failed_ && unaware_.empty(); }

  /// Receives what has come; returns how many packets. Throws FrameError on one that is none.
  std::size_t receive() { return link_.receive(); }
  /// Sends heartbeats and looks for ranks that are dead, when it is time.
  void tick(Time now);

 private:
  void take(std::uint32_t rank, std::vector<Frame> frames);
  void take_control(std::uint32_t rank, const Frame& frame);
  void take_failure(std::uint32_t rank, const std::string& text, FailureCause cause);
  void take_wait(std::uint32_t rank, WaitReport report);
  void take_exchange(std::uint32_t rank, std::uint64_t sequence, ExchangeAsk ask, std::string_view payload);
  void answer(const ExchangeReply& reply);
  void note_goodbye(Node peer, const std::string& error);
  void fail(const std::string& text, FailureCause cause = FailureCause::kFault);

  bool is_watched(std::uint32_t rank) const;
  FrameHeader header_of(Kind kind) const;
  void send_control(std::uint32_t rank, const FrameHeader& header, std::string_view text,
                    MpiLink::Confirm confirm = MpiLink::Confirm::kNo, MpiLink::Sent sent = {});

  const std::uint32_t self_;
  const std::uint32_t size_;
  const std::uint64_t epoch_;
  std::vector<std::string> names_;  // by rank
  Traffic& traffic_;
  Events& events_;
  MpiLink link_;
  ExchangeCoordinator desk_;  // rank 0's is used
  WaitGraph waits_;           // rank 0's is used
  Liveness liveness_;
  Time next_beat_;
  bool failed_ = false;
  std::set<std::uint32_t> unaware_;  // ranks that have not said that they know of a failure, and may be alive
};

}  // namespace gradwire::transport
