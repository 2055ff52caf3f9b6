#include "transport/decorators/host_link.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <utility>

namespace gradwire::transport {
namespace {

// What the main job says of a leader that left comes over other connections, so it may come later. With the
// leader nobody waits for, the delay costs nothing.
constexpr std::chrono::milliseconds kLongestFarewell{2000};

class HostNode final : public Messenger, private Sink {
 public:
  HostNode(Messenger& job, std::vector<std::uint32_t> members, std::unique_ptr<Messenger> node,
           std::chrono::milliseconds patience)
      : job_(job), members_(std::move(members)), patience_(patience), node_(std::move(node)) {}
  ~HostNode() override { detach(); }

  Node self() const override { return to_job(node_->self()); }
  World world() const override {
    const std::uint32_t workers = job_.world().workers;
    // As many servers as workers: a host's one server has the rank of its leader, and any rank may lead.
    return {workers, workers, node_->world().epoch};
  }
  std::optional<Node> local_peer() const override {
    const auto peer = node_->local_peer();
    return peer ? std::optional(to_job(*peer)) : std::nullopt;
  }
  bool seals_payloads() const override { return node_->seals_payloads(); }
  std::vector<PeerCounters> counters() const override {
    auto counters = node_->counters();
    for (PeerCounters& peer : counters) peer.peer = to_job(peer.peer);
    return counters;
  }

  void attach(Sink& sink) override {
    sink_ = &sink;
    node_->attach(*this);
  }
  void detach() override {
    node_->detach();
    // No goodbye comes any more, so nobody else assigns it.
    farewell_ = {};
  }
  void send(Node to, std::vector<Frame> frames) override {
    const Node at_host = to_host(to);
    try {
      node_->send(at_host, std::move(frames));
    } catch (const TransportError&) {  // NOLINT(bugprone-empty-catch): on_failure() tells the job
    }
  }
  std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                    std::chrono::milliseconds timeout) override {
    return node_->exchange(name, blob, timeout);
  }
  std::uint64_t exchanges() const override { return node_->exchanges(); }
  // A failure is the main job's affair: it tells every rank, and this link ends behind it.
  void fail(const std::string& text) override { job_.fail(text); }
  void note_error(const std::string& error) override { node_->note_error(error); }
  void leave(std::chrono::milliseconds timeout) override {
    ends();
    node_->leave(timeout);
  }

 private:
  // The scheduler is named alike in both jobs.
  Node to_job(Node node) const {
    if (node.role == Role::kScheduler) return node;
    return {node.role, members_.at(node.role == Role::kServer ? 0 : node.rank)};
  }

  Node to_host(Node node) const {
    // The host's only server is its leader's.
    if (node == Node{Role::kServer, members_.front()}) return {Role::kServer, 0};
    const auto found = std::ranges::find(members_, node.rank);
    if (node.role != Role::kWorker || found == members_.end())
      throw std::invalid_argument("host link: " + to_string(node) + " is not on the host of " +
                                  to_string(self()));
    return {Role::kWorker, static_cast<std::uint32_t>(found - members_.begin())};
  }

  void on_frames(Node from, std::vector<Frame> frames) override {
    sink_->on_frames(to_job(from), std::move(frames));
  }

  void on_goodbye(Node peer, const std::string& error) override {
    if (peer.role != Role::kServer) return sink_->on_goodbye(to_job(peer), error);
    // The leader has left, as it does at the end of the main job: what breaks afterwards is no failure.
    ends();
    farewell_ = std::jthread([this, peer, error](const std::stop_token& stop) {
      std::unique_lock waiting(mutex_);
      ended_.wait_for(waiting, stop, std::min(patience_, kLongestFarewell), [] { return false; });
      if (stop.stop_requested()) return;
      waiting.unlock();
      sink_->on_goodbye(to_job(peer), error);
    });
  }

  void on_failure(const std::string& text) override {
    if (node_->self().role == Role::kServer)
      return sink_->on_failure(text);  // the leader's worker tells the job
    const std::lock_guard lock(mutex_);
    // Once: the first failure is the cause.
    if (over_ || reporter_.joinable()) return;
    // On a thread of its own, since a Sink's call must return at once. It waits because the main job knows
    // better who died, if it finds out itself: only a break of this link alone is reported.
    reporter_ = std::jthread([this, text](const std::stop_token& stop) {
      std::unique_lock waiting(mutex_);
      ended_.wait_for(waiting, stop, patience_, [this] { return over_; });
      if (over_ || stop.stop_requested()) return;
      // job_.fail() may call back into this node.
      waiting.unlock();
      job_.fail(to_string(self()) + " lost the workers of its host: " + text);
    });
  }

  /// From now on the rest of the host's job concerns nobody.
  void ends() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    ended_.notify_all();
  }

  Messenger& job_;
  const std::vector<std::uint32_t> members_;
  const std::chrono::milliseconds patience_;
  Sink* sink_ = nullptr;
  const std::unique_ptr<Messenger> node_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable_any ended_;
  bool over_ = false;
  std::jthread reporter_, farewell_;  // last members: joined before the rest dies
};

}  // namespace

Hosts group_by_host(std::span<const std::string> identities) {
  Hosts hosts;
  std::map<std::string, std::size_t> known;
  for (std::uint32_t rank = 0; rank < identities.size(); ++rank) {
    const std::string& identity = identities[rank];
    const auto found = known.find(identity);
    if (found != known.end()) {
      hosts[found->second].push_back(rank);
      continue;
    }
    // A worker that does not know its machine is taken for alone on it.
    if (!identity.empty()) known[identity] = hosts.size();
    hosts.push_back({rank});
  }
  return hosts;
}

std::vector<std::uint32_t> leaders_of(const Hosts& hosts) {
  std::vector<std::uint32_t> leaders;
  for (const auto& members : hosts) leaders.push_back(members.front());
  return leaders;
}

const std::vector<std::uint32_t>& host_of(const Hosts& hosts, std::uint32_t rank) {
  return *std::ranges::find_if(
      hosts, [rank](const auto& members) { return std::ranges::binary_search(members, rank); });
}

std::unique_ptr<Messenger> with_ranks_of(Messenger& job, std::vector<std::uint32_t> members,
                                         std::unique_ptr<Messenger> node,
                                         std::chrono::milliseconds patience) {
  return std::make_unique<HostNode>(job, std::move(members), std::move(node), patience);
}

}  // namespace gradwire::transport
