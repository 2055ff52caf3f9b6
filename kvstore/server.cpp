#include "kvstore/server.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "kvstore/aggregator.h"
#include "kvstore/clock_probe.h"
#include "kvstore/loop.h"
#include "kvstore/mailbox.h"
#include "kvstore/outbox.h"
#include "kvstore/row_aggregator.h"
#include "kvstore/server_trace.h"
#include "kvstore/ticket.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::Kind;
using transport::Node;
using transport::Role;

namespace {

std::size_t shard_index(const transport::FrameHeader& header, std::size_t shards) {
  const std::uint64_t offset = RowAggregator::takes(header.kind) ? 0 : header.offset;  // there, a number
  std::uint64_t hash = header.key * 0x9E3779B97F4A7C15U ^ offset * 0xC2B2AE3D27D4EB4FU;
  hash ^= hash >> 32;
  return hash % shards;
}

Aggregator::Sealing sealing_of(const transport::Messenger& messenger) {
  return messenger.seals_payloads() ? Aggregator::Sealing::kAll : Aggregator::Sealing::kLossy;
}

Aggregator make_aggregator(const transport::Messenger& messenger, const ServerOptions& options,
                           const std::shared_ptr<LastPushes>& last_pushes) {
  Aggregator aggregator(messenger.world().workers, sealing_of(messenger));
  if (!options.contributors.empty()) aggregator.set_contributors(options.contributors);
  aggregator.set_upstream(options.upstream);
  aggregator.set_last_pushes(last_pushes);
  return aggregator;
}

}  // namespace

/// How the job ended for this server.
struct Server::End {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::uint32_t> workers_gone;
  std::string failure;
};

/// One aggregator thread and the partitions it owns.
class Server::Shard {
 public:
  Shard(transport::Messenger& messenger, const ServerOptions& options,
        const std::shared_ptr<LastPushes>& last_pushes)
      : trace_(Tracer(options.trace, options.tier)),
        aggregator_(make_aggregator(messenger, options, last_pushes)),
        rows_(messenger.world().workers, sealing_of(messenger)),
        mailbox_(messenger.world().workers),
        outbox_(messenger, loop_, Role::kWorker, messenger.world().workers, messenger.self().rank,
                {options.credit_bytes, options.fusion_bytes}, trace_.tracer()) {
    if (options.trace)
      aggregator_.set_watch([this](auto moment, const auto& push) { trace_.on(moment, push); });
    thread_ = std::jthread([this] { run(); });
  }

  ~Shard() { loop_->stop(); }

  void post(Node from, std::vector<Frame> frames) {
    const auto arrived = trace_.tracer().now();
    loop_->post([this, rank = from.rank, frames = std::move(frames), arrived]() mutable {
      trace_.arrived(arrived, rank);
      for (Frame& frame : frames) {
        if (Mailbox::takes(frame.header.kind)) {
          mailbox_.handle(rank, std::move(frame), answers_);
        } else if (RowAggregator::takes(frame.header.kind)) {
          rows_.handle(rank, std::move(frame), answers_);
        } else {
          if (frame.header.kind == Kind::kCommand) rows_.heed(frame);
          aggregator_.handle(rank, std::move(frame), answers_);
        }
      }
      // At once, and not with the batch's: while the next sum is made, the link carries this one.
      if (!answers_.empty() || !outbox_.empty()) send_answers();
    });
  }

  void answer(Frame frame) {
    loop_->post(
        [this, frame = std::move(frame)]() mutable { aggregator_.answer(std::move(frame), answers_); });
  }

  /// Done when every answer is with the Messenger.
  Ticket sent() {
    Ticket ticket;
    loop_->post([this, ticket] { waiting_sent_.push_back(ticket); });
    return ticket;
  }

  /// The goodbye comes through the scheduler and may overtake the worker's last frames: act on it a tick
  /// later.
  void forget_worker(std::uint32_t rank) {
    loop_->post([this, rank] { leaving_.push_back(rank); });
  }

 private:
  void run() {
    loop_->run(
        std::chrono::seconds(1), [this] { send_answers(); }, [this] { forget_the_gone(); });
  }

  void forget_the_gone() {
    for (const std::uint32_t rank : gone_) {
      aggregator_.forget_worker(rank, answers_);
      rows_.forget_worker(rank, answers_);
      mailbox_.forget_worker(rank, answers_);
    }
    gone_ = std::exchange(leaving_, {});
    send_answers();
  }

  void send_answers() {
    for (auto& answer : answers_) outbox_.add(answer.worker, std::move(answer.frame));
    answers_.clear();
    try {
      outbox_.flush();
    } catch (const transport::TransportError&) {
      loop_->stop();  // the job has failed; on_failure tells wait() why
    }
    if (!outbox_.empty()) return;
    for (const Ticket& ticket : std::exchange(waiting_sent_, {})) ticket.succeed();
  }

  std::shared_ptr<Loop> loop_ = std::make_shared<Loop>();  // owners: this and payloads still in the socket
  ServerTrace trace_;
  Aggregator aggregator_;
  RowAggregator rows_;
  Mailbox mailbox_;
  std::vector<Aggregator::Answer> answers_;
  std::vector<std::uint32_t> leaving_, gone_;  // said goodbye since the last tick; before it
  std::vector<Ticket> waiting_sent_;
  Outbox outbox_;
  std::jthread thread_;  // last member: joined before the rest dies
};

Server::Server(std::unique_ptr<transport::Messenger> messenger, const ServerOptions& options)
    : messenger_(std::move(messenger)), trace_(options.trace), end_(std::make_unique<End>()) {
  if (options.threads == 0) throw std::invalid_argument("Server: threads=0, expected at least 1");
  const auto last_pushes = std::make_shared<LastPushes>(messenger_->world().workers);
  for (unsigned i = 0; i < options.threads; ++i)
    shards_.push_back(std::make_unique<Shard>(*messenger_, options, last_pushes));
  messenger_->attach(*this);
}

Server::~Server() {
  messenger_->detach();
  shards_.clear();
}

bool Server::wait_for(std::chrono::milliseconds timeout) {
  {
    std::unique_lock lock(end_->mutex);
    const auto over = [this] {
      return !end_->failure.empty() || end_->workers_gone.size() == messenger_->world().workers;
    };
    if (!end_->changed.wait_for(lock, timeout, over)) return false;
    if (!end_->failure.empty()) throw transport::TransportError(end_->failure);
  }
  messenger_->leave(std::chrono::seconds(2));
  return true;
}

void Server::retire(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto left = [&] {
    return std::max(std::chrono::milliseconds(0), std::chrono::duration_cast<std::chrono::milliseconds>(
                                                      deadline - std::chrono::steady_clock::now()));
  };
  const auto failed = [this] {
    const std::lock_guard lock(end_->mutex);
    return !end_->failure.empty();
  };
  for (auto& shard : shards_) {
    if (!failed()) shard->sent().wait_for(left());
  }
  messenger_->leave(left());
}

void Server::wait() {
  while (!wait_for(std::chrono::hours(1))) {
  }
}

void Server::answer(Frame frame) {
  shards_[shard_index(frame.header, shards_.size())]->answer(std::move(frame));
}

void Server::on_frames(Node from, std::vector<Frame> frames) {
  if (from.role != Role::kWorker) return;  // servers take requests from workers only
  if (frames.front().header.kind == Kind::kClock && frames.size() == 1) {
    return tell_time_to(from, frames.front().header);
  }
  if (shards_.size() == 1) return shards_[0]->post(from, std::move(frames));
  std::vector<std::vector<Frame>> by_shard(shards_.size());
  for (Frame& frame : frames) {
    if (frame.header.kind == Kind::kCommand) {  // concerns every shard
      for (auto& batch : by_shard) batch.push_back({frame.header, frame.payload.share()});
      continue;
    }
    by_shard[shard_index(frame.header, shards_.size())].push_back(std::move(frame));
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (!by_shard[i].empty()) shards_[i]->post(from, std::move(by_shard[i]));
  }
}

/// At once, on the thread that heard the question: every queue on the way would count as distance of the
/// clocks.
void Server::tell_time_to(Node worker, const transport::FrameHeader& asked) {
  const auto now = TraceClock::now();
  std::vector<Frame> frames;
  frames.push_back(tell_time(asked, trace_ ? trace_->told(now) : now));
  try {
    messenger_->send(worker, std::move(frames));
  } catch (
      const transport::TransportError&) {  // NOLINT(bugprone-empty-catch): the job is over; who asks gives up
  }
}

void Server::on_failure(const std::string& text) {
  const std::lock_guard lock(end_->mutex);
  if (end_->failure.empty()) end_->failure = text;
  end_->changed.notify_all();
}

void Server::on_goodbye(Node peer) {
  if (peer.role != Role::kWorker) return;
  for (auto& shard : shards_) shard->forget_worker(peer.rank);
  const std::lock_guard lock(end_->mutex);
  end_->workers_gone.insert(peer.rank);
  end_->changed.notify_all();
}

}  // namespace gradwire::kvstore
