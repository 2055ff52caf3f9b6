// A job over ZeroMQ on loopback: its options, and a worker made of a plain socket.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>

#include "tests/transport/zmq/raw_peer.h"
#include "transport/membership/control.h"
#include "transport/zmq/scheduler.h"
#include "transport/zmq/zmq_messenger.h"

namespace gradwire::transport {

inline ZmqOptions job_of(std::uint32_t workers, std::uint32_t servers) {
  ZmqOptions options;
  options.scheduler = "tcp://127.0.0.1:*";
  options.workers = workers;
  options.servers = servers;
  options.rendezvous_timeout = std::chrono::seconds(15);
  return options;
}

inline ZmqOptions node_of(ZmqOptions options, const Scheduler& scheduler, Role role,
                          std::optional<std::uint32_t> rank) {
  options.scheduler = scheduler.endpoint();
  options.role = role;
  options.rank = rank;
  options.log = nullptr;
  return options;
}

inline std::future<std::unique_ptr<Messenger>> join_later(const ZmqOptions& options) {
  return std::async(std::launch::async, [options] { return connect_zmq(options); });
}

constexpr Node kRawNode{Role::kWorker, 1};

inline FrameHeader control_header(Kind kind, Node sender, std::uint64_t epoch) {
  FrameHeader header;
  header.kind = kind;
  header.sender = sender;
  header.epoch = epoch;
  return header;
}

inline std::string raw_hello(std::uint32_t workers, std::uint32_t servers, const std::string& member = {}) {
  return to_text(Hello{
      Role::kWorker, kRawNode.rank, workers, servers, {}, {}, {}, kVersion, "raw-host", 4711, 0, member});
}

/// Worker 1 of a job, by hand: it stops beating when told to.
class RawWorker {
 public:
  RawWorker(const Scheduler& scheduler, std::uint32_t workers, std::uint32_t servers,
            const std::string& member = {})
      : control_(scheduler.endpoint()) {
    control_.handshake();
    control_.write_frame(control_header(Kind::kHello, {Role::kWorker, kNoRank}, 0),
                         raw_hello(workers, servers, member));
  }

  Roster await_roster() {
    const auto answer = control_.read_control();
    if (!answer || answer->header.kind != Kind::kRoster) throw std::runtime_error("no roster");
    roster_ = parse_roster(answer->payload);
    return roster_;
  }
  /// Waits for a first heartbeat: the scheduler has taken the hello.
  void await_taken() {
    if (!control_.read_message()) throw std::runtime_error("the scheduler did not take the hello");
  }
  void beat() { control_.write_frame(control_header(Kind::kHeartbeat, kRawNode, roster_.epoch), ""); }

  RawPeer open_stream(std::uint32_t server) {
    RawPeer stream(roster_.endpoints.at(server));
    stream.handshake();
    stream.write_frame(control_header(Kind::kHello, kRawNode, roster_.epoch), to_text(StreamHello{0, 1}));
    const auto answer = stream.read_control();
    if (!answer || answer->header.kind != Kind::kHello)
      throw std::runtime_error("no answer to the stream's hello");
    return stream;
  }

  RawPeer& control() { return control_; }

 private:
  RawPeer control_;
  Roster roster_;
};

}  // namespace gradwire::transport
