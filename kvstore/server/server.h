// Server sums what workers push and answers them. It is the same class wherever it is hosted: in a process
// of its own (gradwire-server), or inside a worker's (placement local). With replicas it also mirrors
// another server (mirror.h), and takes over when that one has died.
//
// Threading: aggregator threads (one per `threads`, each owning a share of the partitions) and the
// Messenger's I/O thread, which only hands frames over. wait() from any one thread.
// Lifetime: owns its Messenger. The destructor stops at once; leave gracefully by wait(), or by serve_on()
// where workers host servers.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kvstore/options.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

class ServerShard;
struct ShardPlace;

class Server final : private transport::Sink {
 public:
  Server(std::unique_ptr<transport::Messenger> messenger, const ServerOptions& options);
  ~Server() override;

  /// Returns when every worker has left cleanly; throws TransportError naming the rank and role when the job
  /// failed, MembershipChanged where it goes on, without this object.
  void wait();
  /// As wait(), for at most timeout; returns false when it is not over yet.
  bool wait_for(std::chrono::milliseconds timeout);
  /// For a Server in the process of this worker, which sends no more: holds copies of what has come from it,
  /// and not its callers' memory. Blocks until then.
  void copy_payloads_of(std::uint32_t worker);
  /// For a Server whose own worker has left: goes on serving the others, on a thread of its own, and leaves
  /// once they have left, too, or the job has failed. Idempotent.
  void serve_on();
  /// After serve_on(): waits for that end, for at most timeout; returns false when that passed first.
  bool has_served_all(std::chrono::milliseconds timeout);
  /// Leaves before the other workers do, for a process that ends by an error: sends what is answered already,
  /// for at most timeout. Rounds that are not complete then never will be.
  void retire(std::chrono::milliseconds timeout);

  /// Answers the round whose sum was given to upstream; the frame has that one's key, offset and step.
  void answer(transport::Frame frame);

  transport::Node self() const { return messenger_->self(); }
  transport::World world() const { return messenger_->world(); }
  std::vector<transport::PeerCounters> counters() const { return messenger_->counters(); }

 private:
  using Shards = std::vector<std::unique_ptr<ServerShard>>;
  Shards make_shards(const ServerOptions& options, const ShardPlace& place);
  static void hand_out(Shards& shards, std::uint32_t worker, std::vector<transport::Frame> frames);
  void take_from_server(transport::Node from, std::vector<transport::Frame> frames);
  transport::Node mirrored() const;
  /// Requires a server.
  bool is_mirror(transport::Node server) const;
  void lose_mirror(transport::Node server);
  void on_frames(transport::Node from, std::vector<transport::Frame> frames) override;
  void on_failure(const std::string& text) override;
  void on_membership_changed(const std::string& text) override;
  void on_goodbye(transport::Node peer, const std::string& error) override;
  void on_departure(transport::Node server, transport::Node mirror) override;
  void tell_time_to(transport::Node worker, const transport::FrameHeader& asked);

  struct End;
  std::unique_ptr<transport::Messenger> messenger_;
  const std::shared_ptr<Trace> trace_;
  const std::size_t served_;  ///< how many workers
  std::unique_ptr<End> end_;
  Shards shards_;
  Shards replica_;           ///< of the server that this one mirrors; empty without replicas
  std::jthread serving_on_;  ///< last member: joined before the rest dies
};

}  // namespace gradwire::kvstore
