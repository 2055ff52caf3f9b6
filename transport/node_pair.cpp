#include "transport/node_pair.h"

#include <mutex>
#include <utility>

namespace gradwire::transport {
namespace {

/// Where one of the two hears the other. The Sink's two callers, the other node and the Messenger's I/O
/// thread, need not wait for each other.
class Ear {
 public:
  void hear(Node from, std::vector<Frame> frames) {
    const std::lock_guard lock(mutex_);
    // Under the lock, so that detach() waits for the call as Messenger::detach() must.
    if (sink_ != nullptr) return sink_->on_frames(from, std::move(frames));
    // The other node may send before this one has its Sink, but after detach() nobody will take it.
    if (!detached_) early_.emplace_back(from, std::move(frames));
  }

  void attach(Sink& sink) {
    const std::lock_guard lock(mutex_);
    sink_ = &sink;
    detached_ = false;
    for (auto& [from, frames] : std::exchange(early_, {})) sink.on_frames(from, std::move(frames));
  }

  void detach() {
    const std::lock_guard lock(mutex_);
    sink_ = nullptr;
    detached_ = true;
    early_.clear();
  }

 private:
  std::mutex mutex_;
  Sink* sink_ = nullptr;
  bool detached_ = false;
  std::vector<std::pair<Node, std::vector<Frame>>> early_;
};

class Colocated final : public Messenger {
 public:
  Colocated(std::shared_ptr<Messenger> messenger, const std::shared_ptr<Messenger>& other,
            std::shared_ptr<Ear> own, std::shared_ptr<Ear> others)
      : messenger_(std::move(messenger)),
        other_messenger_(other),
        other_(other->self()),
        own_(std::move(own)),
        others_(std::move(others)) {}
  ~Colocated() override { own_->detach(); }

  Node self() const override { return messenger_->self(); }
  World world() const override { return messenger_->world(); }
  std::optional<Node> local_peer() const override { return other_; }
  bool seals_payloads() const override { return messenger_->seals_payloads(); }
  bool loses_frames() const override { return messenger_->loses_frames(); }
  void report_wait(const WaitReport& report) override { messenger_->report_wait(report); }
  std::uint64_t exchanges() const override { return messenger_->exchanges(); }
  void fail(const std::string& text) override {
    messenger_->fail(text);
    // The other ends with this process: it must not look like one that leaves.
    if (const auto other = other_messenger_.lock()) other->fail(text);
  }
  std::uint32_t newcomers() const override { return messenger_->newcomers(); }
  void regroup(const std::string& text, Parting parting) override {
    messenger_->regroup(text, parting);
    const auto other = parting == Parting::kLeaves ? other_messenger_.lock() : nullptr;
    if (other) other->regroup(text, parting);  // likewise
  }
  void note_error(const std::string& error) override {
    messenger_->note_error(error);
    // The other ends with this process, and by the same error.
    if (const auto other = other_messenger_.lock()) other->note_error(error);
  }
  void leave(std::chrono::milliseconds timeout) override { messenger_->leave(timeout); }
  bool outlast(std::chrono::milliseconds timeout) override { return messenger_->outlast(timeout); }
  std::vector<PeerCounters> counters() const override { return messenger_->counters(); }

  void attach(Sink& sink) override {
    // First what the other node has sent: it may be what a frame from elsewhere answers.
    own_->attach(sink);
    messenger_->attach(sink);
  }

  void detach() override {
    own_->detach();
    messenger_->detach();
  }

  void send(Node to, std::vector<Frame> frames) override {
    if (to != other_) return messenger_->send(to, std::move(frames));
    for (Frame& frame : frames) {
      frame.header.sender = messenger_->self();
      frame.header.epoch = messenger_->world().epoch;
      frame.payload.unseal();  // the bytes stay where they are: there is nothing to compare
    }
    others_->hear(messenger_->self(), std::move(frames));
  }

  std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                    std::chrono::milliseconds timeout) override {
    return messenger_->exchange(name, blob, timeout);
  }

 private:
  const std::shared_ptr<Messenger> messenger_;  // owners: this, and the other node while it fails
  const std::weak_ptr<Messenger> other_messenger_;
  const Node other_;
  const std::shared_ptr<Ear> own_;     // owners: this and the other node
  const std::shared_ptr<Ear> others_;  // likewise
};

}  // namespace

NodePair colocate(NodePair pair) {
  const Node worker = pair.worker->self();
  const Node server = pair.server->self();
  if (worker != Node{Role::kWorker, server.rank} || server.role != Role::kServer ||
      pair.worker->world() != pair.server->world()) {
    throw std::invalid_argument("colocate: given " + to_string(worker) + " and " + to_string(server) +
                                ", expected a worker and the server of its rank, of one job");
  }
  const auto to_worker = std::make_shared<Ear>();
  const auto to_server = std::make_shared<Ear>();
  const std::shared_ptr<Messenger> at_worker = std::move(pair.worker), at_server = std::move(pair.server);
  return {std::make_unique<Colocated>(at_worker, at_server, to_worker, to_server),
          std::make_unique<Colocated>(at_server, at_worker, to_server, to_worker)};
}

}  // namespace gradwire::transport
