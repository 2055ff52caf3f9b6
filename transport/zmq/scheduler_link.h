// SchedulerLink is a node's connection to the scheduler: hello until the roster comes, heartbeats, goodbye.
//
// Threading: the I/O thread only; Events are called from within take_messages() and tick().
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "transport/membership/control.h"
#include "transport/membership/liveness.h"
#include "transport/traffic.h"
#include "transport/zmq/rejection_log.h"
#include "transport/zmq/zmq_messenger.h"
#include "transport/zmq/zmq_socket.h"

namespace gradwire::transport {

class SchedulerLink {
 public:
  using Time = std::chrono::steady_clock::time_point;

  class Events {
   public:
    virtual ~Events() = default;
    virtual void on_roster(const Roster& roster) = 0;
    virtual void on_exchange_result(const Frame& frame) = 0;
    virtual void on_question(const std::set<std::string>& rounds) = 0;
    virtual void on_goodbye(Node peer, const std::string& error) = 0;
    virtual void on_departure(Node server, Node mirror) = 0;
    virtual void on_newcomers(std::uint32_t count) = 0;
    virtual void on_failure(const std::string& text, FailureCause cause) = 0;
  };

  /// Hello is what this node says of itself until it is on the roster.
  SchedulerLink(const ZmqContext& context, const ZmqOptions& options, Hello hello, Traffic& traffic,
                RejectionLog& refusals, Events& events);

  /// The scheduler's numeric address, as this node reaches it; empty over ipc.
  const std::string& address() const { return address_; }
  std::vector<void*> sockets() const { return {socket_.get(), watch_.get()}; }
  void take_messages();
  void tick(Time now);
  /// When tick() is due.
  Time next_beat() const { return next_beat_; }

  void send(Kind kind, std::uint64_t key, std::uint64_t step, const std::string& payload);
  /// error: what ends this node; empty: it has come to its end.
  void say_goodbye(const std::string& error);
  /// Whether the goodbye was answered, or nobody is there to answer.
  bool is_goodbye_answered() const { return acknowledged_ || lost_; }
  /// From now on the scheduler may go: the job is over.
  void release() { released_ = true; }
  void set_linger(std::chrono::milliseconds time) { socket_.set_linger(time); }

 private:
  void handle(const Frame& frame);
  bool is_news(const Frame& frame);
  void on_connection(const ConnectionEvent& event, Time now);
  /// Why the scheduler will not let this node in, if that is certain by now.
  std::string shut_out(const ConnectionEvent& event, Time now);
  void check_rendezvous(Time now);
  std::string as_resolved() const;
  FrameHeader header_of(Kind kind) const;

  const ZmqOptions& options_;
  const Hello hello_;
  Traffic& traffic_;
  RejectionLog& refusals_;
  Events& events_;
  ZmqSocket socket_;
  ConnectionWatch watch_;
  std::string address_;
  Liveness liveness_;
  Time next_beat_;
  Time next_hello_;
  Time deadline_;                       // of the rendezvous
  std::optional<Time> shut_out_since_;  // the first of the handshakes that the scheduler ended
  Node self_;
  std::uint64_t epoch_ = 0;       // 0 before the roster
  std::uint64_t news_heard_ = 0;  // of this job
  bool has_said_hello_ = false;
  bool heard_ = false;
  bool held_ = false;  // and has said so
  bool acknowledged_ = false;
  bool released_ = false;
  bool lost_ = false;
};

}  // namespace gradwire::transport
