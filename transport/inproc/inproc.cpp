#include "transport/inproc/inproc.h"

#include <condition_variable>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "transport/inbox.h"
#include "transport/membership/exchange_table.h"
#include "transport/membership/wait_graph.h"
#include "transport/mirrors.h"
#include "transport/nodes.h"
#include "transport/traffic.h"

namespace gradwire::transport {

namespace {

std::string has_left_text(Node node) { return to_string(node) + " has left the job"; }

}  // namespace

// What the nodes of one job share; it also does the scheduler's work.
class InprocHub {
 public:
  struct Place {
    Inbox inbox;
    Traffic traffic;
  };

  InprocHub(std::uint32_t workers, std::uint32_t servers, std::uint32_t replicas)
      : world_{workers, servers, (std::uint64_t{std::random_device{}()} << 32) | 1, replicas},
        exchanges_(workers) {
    if (replicas != 0) mirrors_.emplace(servers, replicas);
    for (std::uint32_t rank = 0; rank < workers; ++rank) places_[{Role::kWorker, rank}];
    for (std::uint32_t rank = 0; rank < servers; ++rank) places_[{Role::kServer, rank}];
  }

  const World& world() const { return world_; }
  Place& place(Node node) { return places_.at(node); }

  void take(Node node) {
    const std::lock_guard lock(mutex_);
    if (!places_.contains(node)) throw std::invalid_argument("inproc: there is no " + to_string(node));
    // Also where the node has left: its number of exchanges and its inbox belong to the one that was there.
    if (!taken_.insert(node).second) throw std::invalid_argument("inproc: " + to_string(node) + " is taken");
  }

  bool has_left(Node node) {
    const std::lock_guard lock(mutex_);
    return left_.contains(node);
  }

  void fail(const std::string& text, Inbox::Scope scope = Inbox::Scope::kJob) {
    // Who hears of it may leave at once, and others are to hear of that behind it. And a waiter is either
    // before its check or asleep: none misses the call.
    const std::lock_guard lock(mutex_);
    for (auto& [node, place] : places_) place.inbox.post_failure(text, scope);
    changed_.notify_all();
  }

  /// error: what has ended the node; empty: it came to its end.
  void leave(Node node, const std::string& error) {
    std::set<Node> left;
    {
      const std::lock_guard lock(mutex_);
      // A second call, such as the destructor's, or of a server that was lost: the others know already.
      if (!left_.insert(node).second) return;
      if (node.role == Role::kWorker) {
        // Under the lock that leavers and waiters share: a worker that waits for this one is woken below, and
        // finds it gone.
        exchanges_.leave(node.rank, error);
        waits_.forget(node.rank);
      }
      left = left_;
    }
    changed_.notify_all();
    for (auto& [other, place] : places_) {
      // Nodes that have left wait for nobody.
      if (!left.contains(other)) place.inbox.post_goodbye(node, error);
    }
  }

  void lose(std::uint32_t server) {
    std::optional<std::uint32_t> heir;
    const Node lost{Role::kServer, server};
    {
      const std::lock_guard lock(mutex_);
      if (!left_.insert(lost).second) return;
      // No heir: there are no replicas, or the server was the last copy of something.
      if (mirrors_) heir = mirrors_->lose(server);
    }
    if (!heir) return fail(mirrors_ ? mirrors_->fault() : to_string(lost) + " has died");
    for (auto& [other, place] : places_) {
      // As a process that was killed: it learns nothing of its own death.
      if (other != lost) place.inbox.post_departure(lost, {Role::kServer, *heir});
    }
  }

  void take_wait(std::uint32_t worker, const WaitReport& report) {
    std::map<std::uint32_t, std::set<std::string>> questions;
    Deadlock found;
    {
      const std::lock_guard lock(mutex_);
      // Only a report that changes the picture can complete a deadlock.
      if (!waits_.take(worker, report)) return;
      questions = waits_.take_questions();
      found = waits_.deadlock(exchanges_);
    }
    // Without the lock: fail() below takes it.
    for (auto& [rank, rounds] : questions)
      places_.at({Role::kWorker, rank}).inbox.post_question(std::move(rounds));
    if (!found.workers.empty()) fail(found.text, Inbox::Scope::kCalls);
  }

  /// count: of the worker's exchanges before this one.
  std::vector<std::string> exchange(std::atomic<std::uint64_t>& count, Node self, std::string_view name,
                                    std::string_view blob, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const Inbox& inbox = places_.at(self).inbox;
    // Under the lock of the offer: offers of a worker's threads come in the order of their numbers.
    const std::uint64_t sequence = count++;
    const SharedBlobs blobs = results_.try_emplace(sequence, std::make_shared<Blobs>()).first->second;
    if (exchanges_.offer(sequence, self.rank, name, blob) == ExchangeTable::State::kComplete) {
      // For all threads that wait: other threads of theirs may be in later exchanges, and the table forgets
      // this one before they wake up.
      *blobs = exchanges_.blobs(sequence);
      results_.erase(sequence);
    }
    changed_.notify_all();
    const auto settled = [&] {
      return inbox.failed() || *blobs || left_.contains(self) ||
             exchanges_.state(sequence) != ExchangeTable::State::kWaiting;
    };
    // Nobody needs to be asked who is missing, as over a network: the table is here.
    changed_.wait_for(lock, timeout, settled);
    // A failure first: the others got it, and a result could not be used.
    inbox.rethrow();
    if (*blobs) return **blobs;
    // Not a timeout: the job goes on without this worker.
    if (left_.contains(self)) throw TransportError(has_left_text(self));
    switch (exchanges_.state(sequence)) {
      case ExchangeTable::State::kDeserted:
        throw TransportError(exchanges_.fault(sequence));
      case ExchangeTable::State::kMismatch: {
        const std::string text = exchanges_.fault(sequence);
        // fail() takes the lock. Of several workers that find the mismatch, the first one's text counts.
        lock.unlock();
        fail(text, Inbox::Scope::kCalls);
        throw CallMismatch(text);
      }
      case ExchangeTable::State::kComplete:
      case ExchangeTable::State::kWaiting:
        break;
    }
    const std::string late =
        exchange_timeout_text(sequence, name, list_workers(exchanges_.missing(sequence)), timeout);
    lock.unlock();
    fail(to_string(self) + " gave up: " + late);  // who comes later must not go past it
    throw TimeoutError(late);
  }

 private:
  using Blobs = std::optional<std::vector<std::string>>;
  using SharedBlobs = std::shared_ptr<Blobs>;  // owners: the hub until it is complete, and who waits for it

  const World world_;
  std::map<Node, Place> places_;  // its nodes are fixed after construction
  std::mutex mutex_;              // guards what follows
  std::condition_variable changed_;
  std::set<Node> taken_;
  std::set<Node> left_;
  std::optional<Mirrors> mirrors_;
  ExchangeTable exchanges_;
  std::map<std::uint64_t, SharedBlobs> results_;  // of exchanges that are not complete
  WaitGraph waits_;
};

namespace {

class InprocMessenger final : public Messenger {
 public:
  InprocMessenger(std::shared_ptr<InprocHub> hub, Node self)
      : hub_(std::move(hub)), self_(self), place_(hub_->place(self)) {
    thread_ = std::thread([this] {
      while (place_.inbox.wait()) deliver();
    });
  }

  ~InprocMessenger() override {
    // In this order: others get the goodbye, the Sink is not called any more, and then the thread may end.
    hub_->leave(self_, error_);
    place_.inbox.detach();
    place_.inbox.close();
    thread_.join();
  }

  Node self() const override { return self_; }
  World world() const override { return hub_->world(); }
  void attach(Sink& sink) override { place_.inbox.attach(sink); }
  void detach() override { place_.inbox.detach(); }
  void report_wait(const WaitReport& report) override {
    if (self_.role == Role::kWorker) hub_->take_wait(self_.rank, report);
  }
  std::uint64_t exchanges() const override { return exchange_count_; }
  void fail(const std::string& text) override { hub_->fail(text); }
  void note_error(const std::string& error) override { error_ = error; }
  void leave(std::chrono::milliseconds) override { hub_->leave(self_, error_); }
  std::vector<PeerCounters> counters() const override { return place_.traffic.snapshot(); }

  void send(Node to, std::vector<Frame> frames) override {
    check_route(self_, hub_->world(), to, frames);
    check_member();
    for (Frame& frame : frames) {
      frame.header.sender = self_;
      frame.header.epoch = hub_->world().epoch;
      // As a socket does: the sender's memory is its own again, however long the receiver keeps what came.
      frame.payload = frame.payload.copy();
    }
    // Counted before the check below, as a socket takes what its peer no longer reads.
    const std::uint64_t bytes = total_bytes(frames);
    place_.traffic.sent(to, bytes, frames.size());
    if (hub_->has_left(to) || hub_->has_left(self_)) return;  // the dead neither hear nor speak
    InprocHub::Place& peer = hub_->place(to);
    peer.traffic.received(self_, bytes, frames.size());
    peer.inbox.post_frames(self_, std::move(frames));
  }

  std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                    std::chrono::milliseconds timeout) override {
    check_exchange(self_, name);
    check_member();
    return hub_->exchange(exchange_count_, self_, name, blob, timeout);
  }

 private:
  void deliver() {
    try {
      place_.inbox.deliver();
    } catch (const std::exception& error) {  // a Sink's
      // Not thrown on: nothing above this thread would catch it, and the process would end.
      hub_->fail(to_string(self_) + ": " + error.what());
    }
  }

  void check_member() const {
    place_.inbox.rethrow();
    if (hub_->has_left(self_)) throw TransportError(has_left_text(self_));
  }

  const std::shared_ptr<InprocHub> hub_;
  const Node self_;
  InprocHub::Place& place_;
  std::atomic<std::uint64_t> exchange_count_{0};
  std::string error_;  // what ends this node; its owner's alone
  std::thread thread_;
};

}  // namespace

InprocNetwork::InprocNetwork(std::uint32_t workers, std::uint32_t servers, std::uint32_t replicas)
    : hub_(std::make_shared<InprocHub>(workers, servers, replicas)) {}

void InprocNetwork::lose(std::uint32_t server) { hub_->lose(server); }

std::unique_ptr<Messenger> InprocNetwork::connect(Node node) {
  hub_->take(node);
  return std::make_unique<InprocMessenger>(hub_, node);
}

}  // namespace gradwire::transport
