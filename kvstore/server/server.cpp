#include "kvstore/server/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "kvstore/server/server_shard.h"
#include "kvstore/trace/clock_probe.h"
#include "kvstore/wire/subject.h"
#include "transport/mirrors.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::Kind;
using transport::Node;
using transport::Role;

namespace {

constexpr std::chrono::seconds kLeaveTimeout{2};

std::size_t shard_index(const transport::FrameHeader& header, std::size_t shards) {
  // Of rows it numbers the parts of a request: a table's state lives in one shard.
  const std::uint64_t offset = subject_of_request(header.kind) == Subject::kRows ? 0 : header.offset;
  std::uint64_t hash = header.key * 0x9E3779B97F4A7C15U ^ offset * 0xC2B2AE3D27D4EB4FU;
  hash ^= hash >> 32;
  return hash % shards;
}

ServerOptions checked(const ServerOptions& options, const transport::World& world) {
  if (options.threads == 0) throw std::invalid_argument("Server: threads=0, expected at least 1");
  if (world.replicas == 0) return options;
  transport::require_mirrors("Server", world.servers, world.replicas);
  if (options.threads > kMaxMirrorLogs) {
    throw std::invalid_argument(fmt::format("Server: threads={} with replicas, expected at most {}",
                                            options.threads, kMaxMirrorLogs));
  }
  if (options.upstream) {
    throw std::invalid_argument(
        "Server: replicas for the server of a host's workers, whose sums go upstream; mirror the main job's");
  }
  return options;
}

}  // namespace

/// How the job ended for this server.
struct Server::End {
  std::mutex mutex;
  std::condition_variable_any changed;
  std::set<std::uint32_t> workers_gone;
  std::string failure;
  bool goes_on = false;         // the job, with other members
  bool has_served_all = false;  // after serve_on()

  /// With mutex held. workers: how many this server serves.
  bool is_over(std::size_t workers) const { return !failure.empty() || workers_gone.size() == workers; }
};

Server::Server(std::unique_ptr<transport::Messenger> messenger, const ServerOptions& options)
    : messenger_(std::move(messenger)),
      trace_(options.trace),
      served_(options.contributors.empty() ? messenger_->world().workers : options.contributors.size()),
      end_(std::make_unique<End>()) {
  const transport::World world = messenger_->world();
  const ServerOptions own = checked(options, world);
  ShardPlace place;
  place.logs = own.threads;
  if (world.replicas > 0) place.mirror = {Role::kServer, transport::mirror_of(self().rank, world.servers)};
  shards_ = make_shards(own, place);
  if (world.replicas > 0) {
    ServerOptions of_other = own;
    of_other.trace = nullptr;  // spans are the other server's
    place.mirror.reset();
    place.mirrored = {Role::kServer, transport::mirrored_by(self().rank, world.servers)};
    replica_ = make_shards(of_other, place);
  }
  messenger_->attach(*this);
}

Server::~Server() {
  messenger_->detach();
  shards_.clear();
  replica_.clear();
}

Server::Shards Server::make_shards(const ServerOptions& options, const ShardPlace& place) {
  const auto stragglers = std::make_shared<StragglerCounts>(messenger_->world().workers);
  const auto mirrored_bytes = std::make_shared<std::atomic<std::uint64_t>>(0);
  Shards shards;
  for (unsigned i = 0; i < options.threads; ++i) {
    ShardPlace own = place;
    own.log = i;
    shards.push_back(std::make_unique<ServerShard>(*messenger_, options, own, stragglers, mirrored_bytes));
  }
  return shards;
}

bool Server::wait_for(std::chrono::milliseconds timeout) {
  {
    std::unique_lock lock(end_->mutex);
    const auto over = [this] { return end_->is_over(served_); };
    if (!end_->changed.wait_for(lock, timeout, over)) return false;
    if (end_->goes_on) throw transport::MembershipChanged(end_->failure);
    if (!end_->failure.empty()) throw transport::TransportError(end_->failure);
  }
  messenger_->leave(kLeaveTimeout);
  return true;
}

void Server::copy_payloads_of(std::uint32_t worker) {
  std::vector<Ticket> copied;
  for (auto& shard : shards_) copied.push_back(shard->copy_payloads_of(worker));
  for (const Ticket& one : copied) one.wait();
}

void Server::serve_on() {
  if (serving_on_.joinable()) return;
  const auto leave_last = [this] {
    messenger_->leave(kLeaveTimeout);
    const std::lock_guard lock(end_->mutex);
    end_->has_served_all = true;
    end_->changed.notify_all();
  };
  const auto over = [this] { return end_->is_over(served_); };
  std::unique_lock lock(end_->mutex);
  if (over()) {
    lock.unlock();
    return leave_last();
  }
  serving_on_ = std::jthread([this, over, leave_last](const std::stop_token& stop) {
    std::unique_lock waiting(end_->mutex);
    if (!end_->changed.wait(waiting, stop, over)) return;
    waiting.unlock();
    leave_last();
  });
}

bool Server::has_served_all(std::chrono::milliseconds timeout) {
  std::unique_lock lock(end_->mutex);
  return end_->changed.wait_for(lock, timeout, [this] { return end_->has_served_all; });
}

void Server::retire(std::chrono::milliseconds timeout) {
  if (serving_on_.joinable()) {
    serving_on_.request_stop();
    serving_on_.join();
  }
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
  const std::lock_guard lock(end_->mutex);
  end_->has_served_all = true;
}

void Server::wait() {
  while (!wait_for(std::chrono::hours(1))) {
  }
}

void Server::answer(Frame frame) {
  shards_[shard_index(frame.header, shards_.size())]->answer(std::move(frame));
}

void Server::on_frames(Node from, std::vector<Frame> frames) {
  if (from.role == Role::kServer) return take_from_server(from, std::move(frames));
  if (frames.front().header.kind == Kind::kClock && frames.size() == 1) {
    return tell_time_to(from, frames.front().header);
  }
  if (replica_.empty()) return hand_out(shards_, from.rank, std::move(frames));
  std::vector<Frame> own, others;
  for (Frame& frame : frames) {
    const auto place = std::exchange(frame.header.on_behalf, std::nullopt);
    if (!place) {
      own.push_back(std::move(frame));
    } else if (*place == mirrored()) {
      others.push_back(std::move(frame));
    }
  }
  hand_out(shards_, from.rank, std::move(own));
  hand_out(replica_, from.rank, std::move(others));
}

Node Server::mirrored() const {
  return {Role::kServer, transport::mirrored_by(self().rank, world().servers)};
}

void Server::hand_out(Shards& shards, std::uint32_t worker, std::vector<Frame> frames) {
  if (frames.empty()) return;
  if (shards.size() == 1) return shards[0]->post(worker, std::move(frames));
  std::vector<std::vector<Frame>> by_shard(shards.size());
  for (Frame& frame : frames) {
    if (subject_of_request(frame.header.kind) == Subject::kCommand) {  // concerns every shard
      for (auto& batch : by_shard) batch.push_back({frame.header, frame.payload.share()});
      continue;
    }
    by_shard[shard_index(frame.header, shards.size())].push_back(std::move(frame));
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (!by_shard[i].empty()) shards[i]->post(worker, std::move(by_shard[i]));
  }
}

/// From its mirror what that has, from the server that it mirrors what that has taken; of two servers each is
/// both.
void Server::take_from_server(Node from, std::vector<Frame> frames) {
  std::vector<std::vector<Frame>> by_log(replica_.size());
  for (Frame& frame : frames) {
    const MirrorNumber number = unpack(frame.header.number);
    if (number.logs != replica_.size()) {
      return messenger_->fail(fmt::format(
          "{} sums in {} threads, and {} in {}: a server and its mirror need as many; give all servers the "
          "same --threads",
          to_string(from), number.logs, to_string(self()), replica_.size()));
    }
    if (number.log >= replica_.size()) continue;
    if (frame.header.kind == Kind::kMirrored) {
      if (is_mirror(from)) shards_[number.log]->acknowledge(number.place);
    } else if (from == mirrored()) {
      by_log[number.log].push_back(std::move(frame));
    }
  }
  for (std::size_t i = 0; i < by_log.size(); ++i) {
    if (!by_log[i].empty()) replica_[i]->post_mirrored(std::move(by_log[i]));
  }
}

void Server::on_departure(Node server, Node mirror) {
  if (mirror == self()) {
    for (auto& shard : replica_) shard->serve();
  }
  lose_mirror(server);
}

bool Server::is_mirror(Node server) const {
  return !replica_.empty() && server.rank == transport::mirror_of(self().rank, world().servers);
}

void Server::lose_mirror(Node server) {
  if (!is_mirror(server)) return;
  for (auto& shard : shards_) shard->lose_mirror();
}

/// At once, on the thread that heard the question: every queue on the way would count as distance of the
/// clocks.
void Server::tell_time_to(Node worker, const transport::FrameHeader& asked) {
  const auto now = TraceClock::now();
  std::vector<Frame> frames;
  frames.push_back(tell_time(asked, trace_ ? trace_->with_offset(now) : now));
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

void Server::on_membership_changed(const std::string& text) {
  const std::lock_guard lock(end_->mutex);
  end_->failure = text;
  end_->goes_on = true;
  end_->changed.notify_all();
}

void Server::on_goodbye(Node peer, const std::string& error) {
  if (peer.role != Role::kWorker) return lose_mirror(peer);
  for (auto& shard : shards_) shard->forget_worker(peer.rank, error);
  for (auto& shard : replica_) shard->forget_worker(peer.rank, error);
  const std::lock_guard lock(end_->mutex);
  end_->workers_gone.insert(peer.rank);
  end_->changed.notify_all();
}

}  // namespace gradwire::kvstore
