// What the scheduler's files share: its state, owned by one thread, and the frames that it sends.
//
// Threading: the scheduler's thread, but for what says otherwise.
#pragma once

#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
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
#include "transport/zmq/listening.h"
#include "transport/zmq/rejection_log.h"
#include "transport/zmq/unauthenticated_peers.h"
#include "transport/zmq/zmq_messenger.h"
#include "transport/zmq/zmq_socket.h"

namespace gradwire::transport {

/// Never 0, which is "before the roster".
std::uint64_t random_epoch();
Buffer to_buffer(std::string text);
constexpr std::chrono::milliseconds kProgressEvery{2'000};

struct Scheduler::State {
  using Clock = std::chrono::steady_clock;

  explicit State(const ZmqOptions& options_);
  ~State();

  bool wait_for(std::chrono::milliseconds timeout);
  void ask_to_fail(const std::string& text);

  std::string endpoint;
  Listening listening;

 private:
  enum class Phase : std::uint8_t {
    kRendezvous,  // of the first generation
    kRunning,
    kRegroup,  // the rendezvous of a later one
    kFailed,
    kOver,
  };

  enum class Standing : std::uint8_t {
    kMember,   // of this generation, or of the first rendezvous
    kSpare,    // a server that nobody will use: it waits until it is ended
    kWaiting,  // for the next generation
    kFormer,   // of an earlier generation, which it may not know yet to have ended
  };

  struct Peer {
    Node node;
    std::string name;  // "worker 1 (host, pid 123)"
    int fd = -1;
    bool left = false;
    bool dedicated = false;  // a server of its own, hosted by no worker
    std::string farewell;    // why it is to end while the job goes on; else empty
    Standing standing = Standing::kMember;
    Hello hello;

    bool counts() const { return standing == Standing::kMember && !left; }
    bool hears_news() const { return counts() || standing == Standing::kSpare; }
  };

  /// A notice that every node must get once.
  struct News {
    Kind kind;
    std::uint64_t key = 0;
    Buffer text;
  };

  /// Where a message came from: the connection's address, for people, and its descriptor.
  struct Caller {
    std::string address;
    int fd = -1;
  };

  void run();
  void loop();
  void take_requests();
  void take_messages();
  void take_connection_events(Clock::time_point now);
  void tick(Clock::time_point now);
  void tick_rendezvous(Clock::time_point now);
  void forget_arrival(const std::string& peer, const std::string& why);
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
  void send_question(std::uint32_t rank, const std::set<std::string>& rounds);
  void answer(ExchangeReply reply);

  void send(const std::string& peer, const FrameHeader& header, Buffer payload = {});
  void send_roster(const std::string& peer);
  void send_failure(const std::string& peer);
  void send_farewell(const std::string& peer);
  /// Sends a notice to all nodes, also to one whose connection is down for a moment.
  void tell(Kind kind, std::uint64_t key, std::string text);
  /// All notices after the first `heard`.
  void send_news(const std::string& peer, std::size_t heard);
  void refuse(const std::string& peer, const Caller& caller, const std::string& why);
  bool may_be_answered(const Caller& stranger);
  /// Answers a node that comes to a job that has ended.
  void turn_away(const std::string& peer, const Caller& caller, FailureCause cause, const std::string& why);
  void log(const std::string& text) const {
    if (options.log) options.log(text);
  }
  FrameHeader header_of(Kind kind) const;
  bool all_left(Role role) const;

  // scheduler_generations.cpp: where the job goes on without those that die
  void await_next();
  void on_later_hello(const std::string& peer, const Caller& caller, const Hello& hello);
  void on_former(const std::string& peer, const Frame& frame);
  void on_waiting(const std::string& peer, const Caller& caller, const Frame& frame);
  void on_regroup(const std::string& peer, const Frame& frame);
  void tick_running(Clock::time_point now);
  void tick_regroup(Clock::time_point now);
  void forget_waiting(const std::string& peer, const std::string& why);
  /// Continues without these members, which are dead or about to leave: with the next generation, or with
  /// the job's end if all others have finished.
  void go_on_without(const std::set<std::string>& members, const std::string& why);
  bool have_all_come_to_the_end_but(const std::set<std::string>& members) const;
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
  void finish(Phase phase, std::exception_ptr outcome);

  const ZmqOptions options;
  std::uint64_t epoch = random_epoch();  // this generation's
  std::uint32_t generation = 1;
  const Clock::time_point started = Clock::now();

  ZmqContext context;
  std::optional<ZapAuthenticator> authenticator;  // of a job with a key
  ZmqSocket router;
  ConnectionWatch watch;
  Wakeup wakeup;

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
  std::map<std::string, Peer> peers;  // by routing id
  Roster roster;
  std::vector<News> news;  // of this generation
  std::uint32_t veterans =
      0;  // this generation's workers below this rank were there before, or began the job
  std::optional<Mirrors> mirrors;
  std::string failure;
  FailureCause failure_cause = FailureCause::kFault;
  Clock::time_point next_beat = started;
  Clock::time_point next_progress = started + kProgressEvery;
  std::optional<Clock::time_point> first_worker_at, workers_left_at;

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::optional<std::string> fail_request;
  bool stopping = false;
  bool finished = false;
  std::exception_ptr outcome_;

  std::thread thread;
};

}  // namespace gradwire::transport
