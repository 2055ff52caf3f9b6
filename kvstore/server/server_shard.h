// ServerShard is one aggregator thread of a Server and the partitions that it owns. With replicas it
// forwards its requests to its mirror (mirror.h), or is a shard of another server's mirror. It then takes
// the forwarded requests without answering, until it takes over.
//
// Threading: any thread may call every method; they only post.
// Lifetime: owned by Server, dies before the Messenger.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kvstore/aggregate/aggregator.h"
#include "kvstore/collectives/blob_store.h"
#include "kvstore/rows/row_aggregator.h"
#include "kvstore/runtime/loop.h"
#include "kvstore/runtime/outbox.h"
#include "kvstore/runtime/ticket.h"
#include "kvstore/server/command_log.h"
#include "kvstore/server/mirror.h"
#include "kvstore/server/server.h"
#include "kvstore/server/server_trace.h"

namespace gradwire::kvstore {

/// Which thread of which server a shard is.
struct ShardPlace {
  unsigned log = 0;                         ///< its number
  unsigned logs = 1;                        ///< threads of the server
  std::optional<transport::Node> mirror;    ///< its mirror, if any
  std::optional<transport::Node> mirrored;  ///< whose mirror it is; none: it is this server's own
};

class ServerShard {
 public:
  /// stragglers and mirrored_bytes are those of all of a server's shards.
  ServerShard(transport::Messenger& messenger, const ServerOptions& options, const ShardPlace& place,
              const std::shared_ptr<StragglerCounts>& stragglers,
              std::shared_ptr<std::atomic<std::uint64_t>> mirrored_bytes);
  ~ServerShard() { loop_->stop(); }

  /// Takes a worker's requests. A mirror keeps them until it serves.
  void post(std::uint32_t worker, std::vector<transport::Frame> frames);
  /// Answers the round whose sum was given to upstream.
  void answer(transport::Frame frame);
  /// Done when every answer is with the Messenger.
  Ticket sent();
  /// As Server's; done when it has.
  Ticket copy_payloads_of(std::uint32_t worker);
  /// The goodbye comes through the scheduler and may overtake the worker's last frames: acts on it a tick
  /// later. error: what has ended it, if an error has.
  void forget_worker(std::uint32_t rank, const std::string& error);

  /// Takes what the mirrored server has passed on. Requires a place that is a mirror's, as serve() does.
  void post_mirrored(std::vector<transport::Frame> frames);
  /// From now on answers in the place of the server that it mirrors, which has died.
  void serve();
  /// Hears that the mirror has all requests before this place. Requires a mirror, as lose_mirror() does.
  void acknowledge(std::uint64_t next);
  /// From now on waits for the mirror no more, which has gone.
  void lose_mirror();

 private:
  using Clock = std::chrono::steady_clock;
  /// What of a server's options is about its mirror.
  struct MirrorWatch {
    std::chrono::milliseconds patience, slow_warning, slow_abort;
    std::function<void(const std::string& text)> notify;
    bool has_warned = false;
  };
  void run();
  void watch_mirror(Clock::time_point now);
  void keep_for_later(std::uint32_t worker, std::vector<transport::Frame> frames);
  void take(std::uint32_t worker, std::vector<transport::Frame> frames);
  void forward(std::uint32_t worker, const std::vector<transport::Frame>& frames);
  void forward_again(std::vector<transport::Frame> frames);
  void take_mirrored(std::vector<transport::Frame> frames);
  void handle(std::uint32_t worker, transport::Frame frame);
  void carry_out(std::uint32_t worker, transport::Frame command);
  /// Of an intact command.
  bool tell_mirrored_bytes(std::uint32_t worker, const transport::Frame& frame);
  void forget_the_gone();
  void send_answers();
  void send(transport::Node to, std::vector<transport::Frame> frames);

  struct Request {
    std::uint32_t worker = 0;
    transport::Frame frame;
  };

  transport::Messenger& messenger_;
  ShardPlace place_;
  std::optional<MirrorLog> log_;  ///< while there is a mirror
  MirrorWatch watch_;
  MirrorIntake intake_;
  bool is_silent_;                  ///< a mirror whose server lives
  std::vector<Request> for_later_;  ///< requests that came before this mirror knew that it serves
  std::size_t bytes_for_later_ = 0;
  std::shared_ptr<std::atomic<std::uint64_t>> mirrored_bytes_;  // owners: the shards of one server
  std::shared_ptr<Loop> loop_ = std::make_shared<Loop>();  // owners: this and payloads still in the socket
  ServerTrace trace_;
  Aggregator aggregator_;
  RowAggregator rows_;
  CommandLog commands_;
  BlobStore blobs_;
  std::vector<Answer> answers_;
  std::map<std::uint32_t, std::string> leaving_, gone_;  // said goodbye lately; before that
  Clock::time_point forgot_ = Clock::now();
  std::vector<Ticket> waiting_sent_;
  Outbox outbox_;
  std::jthread thread_;  // last member: joined before the rest dies
};

}  // namespace gradwire::kvstore
