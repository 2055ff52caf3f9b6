// Messenger over ZeroMQ (tcp and ipc), with rendezvous and heartbeats.
//
// Workers and servers connect to the scheduler, workers connect to every server. Replies come back on the
// same connection, so a worker listens nowhere. transport/PROTOCOL.md has the byte layout and the order of
// control frames.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/checksum.h"
#include "transport/membership/exchange_wait.h"
#include "transport/messenger.h"
#include "transport/node_pair.h"
#include "transport/zmq/job_key.h"

namespace gradwire::transport {

struct ZmqOptions {
  Role role = Role::kWorker;
  std::optional<std::uint32_t> rank;  ///< wanted rank; none: by order of arrival
  std::string scheduler;      ///< "tcp://10.0.0.1:9091", "tcp://[::1]:9091", "tcp://host:9091", "ipc:///path"
  std::uint32_t workers = 1;  ///< job size as this node knows it; all nodes must agree
  std::uint32_t servers = 0;
  std::uint32_t replicas = 0;  ///< 1: servers are mirrored (mirrors.h), and one may die; all nodes must agree
  /// Scheduler: node pairs may come instead, and leave the servers waiting; or nobody, so that the rendezvous
  /// timeout begins with the first worker.
  bool servers_optional = false;
  /// Name or address to listen on and, of a server, to publish; "*": on all interfaces, published as without
  /// it; empty: chosen by `interface`. A scheduler takes it where its own address cannot serve (listening.h).
  std::string bind_host;
  std::string interface;  ///< the address of this network interface ("eth0") instead; empty: a server takes
                          ///< the address from which the scheduler is reached
  std::uint32_t streams_per_peer =
      1;  ///< connections between a worker and a server; partitions spread over them
  std::chrono::milliseconds rendezvous_timeout{60'000};
  /// A silent peer is dead after this; one that has closed its connection after 1.5 s.
  std::chrono::milliseconds liveness_timeout{20'000};
  std::uint64_t max_frame_bytes = std::uint64_t{1} << 31;
  std::string host;  ///< this host's name, for people and to tell hosts apart; empty: what the system says
  bool ipc = true;   ///< worker: reach servers of the same host and network namespace by a local socket
  PayloadChecksum checksum = PayloadChecksum::kAuto;
  /// Encrypts every TCP connection of this node, and takes members alone; none: neither. All nodes of a job
  /// have the same one. Local sockets stay plain: they take this user's processes alone.
  std::optional<JobKey> key;
  std::string pair;                          ///< set by connect_zmq_pair()
  OnFailure on_failure = OnFailure::kAbort;  ///< the same on all nodes
  SlowExchange slow_exchange;                ///< worker: what is said of others that are awaited
  /// With OnFailure::kContinue: this process's name in the job, which no other has and which it keeps when it
  /// joins again.
  std::string member;
  /// Of a worker with on_failure = kContinue: "NAME=VALUE", settings that all workers of the job must share.
  /// A later worker with other values is refused.
  std::vector<std::string> settings;
  // Scheduler, with OnFailure::kContinue:
  std::uint32_t min_workers = 1;  ///< a job with fewer fails
  /// How long the next generation waits for a member that sends no heartbeat.
  std::chrono::milliseconds regroup_timeout{30'000};
  /// The same of one that lives but does not come (it computes).
  std::chrono::milliseconds regroup_patience{1'800'000};
  /// What the scheduler is to people; another name where a worker's process serves as it.
  std::string scheduler_name = "the scheduler";
  /// Scheduler: gets the kind of every frame that it is about to handle; called on the I/O thread. May be
  /// empty.
  std::function<void(Kind)> witness;
  /// Gets progress for people ("waiting for server 1 of 2, worker 3"); called on the I/O thread. May be
  /// empty.
  std::function<void(const std::string&)> log;
};

/// Joins the job as a worker or a server and returns when every node is present and connected. Throws
/// TimeoutError naming the missing nodes, TransportError when the scheduler refuses (settings differ, rank
/// taken) or a node fails, std::invalid_argument for bad options. With OnFailure::kContinue a node that gets
/// MembershipChanged (also from here) leaves and calls this again. A node that comes while the job runs is
/// held until the members form the next generation.
std::unique_ptr<Messenger> connect_zmq(const ZmqOptions& options);

/// Joins the job as a worker and as the server of its shard, which takes the worker's rank. role and servers
/// are ignored. Throws as connect_zmq().
NodePair connect_zmq_pair(ZmqOptions options);

}  // namespace gradwire::transport
