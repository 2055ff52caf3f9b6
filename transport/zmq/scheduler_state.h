// The state of a Scheduler, which its two files share: scheduler.cpp has the life of a job, and
// scheduler_generations.cpp its later generations.
//
// Threading: the scheduler's thread owns all of it but `end`, which any thread may use.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "transport/membership/control.h"
#include "transport/membership/exchange_coordinator.h"
#include "transport/membership/liveness.h"
#include "transport/membership/regroup.h"
#include "transport/membership/rendezvous.h"
#include "transport/membership/wait_graph.h"
#include "transport/mirrors.h"
#include "transport/zmq/curve.h"
#include "transport/zmq/job_end.h"
#include "transport/zmq/listening.h"
#include "transport/zmq/rejection_log.h"
#include "transport/zmq/scheduler.h"
#include "transport/zmq/scheduler_peers.h"
#include "transport/zmq/scheduler_sender.h"
#include "transport/zmq/unauthenticated_peers.h"
#include "transport/zmq/zmq_messenger.h"
#include "transport/zmq/zmq_socket.h"

namespace gradwire::transport {

constexpr std::chrono::milliseconds kProgressEvery{2'000};

struct Scheduler::State {
  using Clock = std::chrono::steady_clock;

  explicit State(const ZmqOptions& options_);
  ~State();

  std::string endpoint;
  Listening listening;
  JobEnd end;

 private:
  enum class Phase : std::uint8_t {
    kRendezvous,  // of the first generation
    kRunning,
    kRegroup,  // the rendezvous of a later one
    kFailed,
    kOver,
  };

  using Peer = SchedulerPeer;

  /// Where a message came from: the connection's address, for people, and its descriptor.
  struct Caller {
    std::string address;
    int fd = -1;
  };

  void run();
  void loop();
  void take_messages();
  void take_connection_events(Clock::time_point now);
  void tick(Clock::time_point now);
  void tick_rendezvous(Clock::time_point now);
  /// Finds nodes that have died, and ends the job or goes on without them.
  void tick_running(Clock::time_point now);
  void forget_arrival(const std::string& peer, const std::string& why);
  /// Whether a lost node is a server whose mirror serves from now on.
  bool replace(const std::string& peer, const std::string& why);
  void begin();
  void call(std::span<const Rendezvous::Member> members, std::uint32_t workers, std::uint32_t servers);
  void take_ended(int fd, Clock::time_point now);

  void handle(const std::string& peer, const Caller& caller, const Frame& frame);
  void on_hello(const std::string& peer, const Caller& caller, const Frame& frame);
  void set_spare_aside();
  void on_exchange(const Peer& from, const Frame& frame);
  void on_goodbye(const std::string& peer, Peer& from, const Frame& frame);
  /// error: what has ended the member; empty: it came to its end.
  void take_leave(const std::string& peer, Peer& from, const std::string& error = {});
  void on_heartbeat(const std::string& peer, const Peer& from, const Frame& frame);
  void on_mismatch(const std::vector<std::uint32_t>& ranks, const std::string& why);
  void on_wait(const Peer& from, const Frame& frame);
  void answer(ExchangeReply reply);

  void send_roster(const std::string& peer);
  void refuse(const std::string& peer, const Caller& caller, const std::string& why);
  bool may_be_answered(const Caller& stranger);
  /// Answers a node that comes to a job that has ended.
  void turn_away(const std::string& peer, const Caller& caller, FailureCause cause, const std::string& why);
  void log(const std::string& text) const {
    if (options.log) options.log(text);
  }

  // scheduler_generations.cpp: where the job goes on without nodes that have died
  void await_next();
  void on_later_hello(const std::string& peer, const Caller& caller, const Hello& hello);
  void on_former(const std::string& peer, const Frame& frame);
  void on_waiting(const std::string& peer, const Caller& caller, const Frame& frame);
  void on_regroup(const std::string& peer, const Frame& frame);
  void tick_regroup(Clock::time_point now);
  void forget_waiting(const std::string& peer, const std::string& why);
  /// Continues without these members, which are dead or about to leave: with the next generation, or with
  /// the job's end if all others have finished.
  void go_on_without(const std::set<std::string>& members, const std::string& why);
  /// leavers: members that are not awaited.
  void regroup(const std::string& why, const std::set<std::string>& leavers = {});
  /// Ends newcomers' part in a job that they do not fit, which goes on without them.
  void dismiss(const std::set<std::string>& members, const std::string& why);
  void send_change(const std::string& peer);
  void begin_next();
  void dismiss_waiting();
  void beat();

  /// Ends the job. deadline: a rendezvous that was not complete in time.
  void fail(const std::string& text, FailureCause cause);
  void finish(Phase phase, std::exception_ptr error);

  const ZmqOptions options;
  std::uint32_t generation = 1;
  const Clock::time_point started = Clock::now();

  ZmqContext context;
  std::optional<ZapAuthenticator> authenticator;  // of a job with a key
  ZmqSocket router;
  ConnectionWatch watch;

  // The thread's own.
  Phase phase = Phase::kRendezvous;
  Rendezvous rendezvous;
  Liveness liveness;
  std::unique_ptr<ExchangeCoordinator> exchanges;  // this generation's
  WaitGraph waits;                                 // this generation's
  std::optional<Regroup> next;                     // from the first generation on, with OnFailure::kContinue
  std::string change;                              // why the last generation ended
  std::vector<std::string> settings;               // what its workers have alike
  RejectionLog refusals;
  UnauthenticatedPeers unauthenticated;
  SchedulerPeers peers;
  SchedulerSender sender;
  Roster roster;
  std::uint32_t veterans =
      0;  // this generation's workers below this rank were there before, or began the job
  std::optional<Mirrors> mirrors;
  std::string failure;
  FailureCause failure_cause = FailureCause::kFault;
  Clock::time_point next_beat = started;
  Clock::time_point next_progress = started + kProgressEvery;
  std::optional<Clock::time_point> first_worker_at, workers_left_at;

  std::thread thread;
};

}  // namespace gradwire::transport
