// FaultyMessenger injects the faults of a bad network into what a node sends, as a FaultSpec says.
// transport/README.md, "Faults", describes them.
//
// It affects only frames of kinds 32 and above, when they are sent, and none that stay in the process's
// memory (local_peer). With one at both ends, both directions are affected. The seed, sender, receiver and
// the frame's number between the two decide what happens to a frame.
// Threading: as Messenger; one thread of its own sends what was held back. Lifetime: leave() and the
// destructor send what is held back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "transport/decorators/faults.h"
#include "transport/decorators/forwarding_messenger.h"

namespace gradwire::transport {

class FaultyMessenger final : public ForwardingMessenger {
 public:
  /// known_rank: by which the spec knows this node, if that is another one than it has now.
  FaultyMessenger(std::unique_ptr<Messenger> messenger, std::shared_ptr<Faults> faults,
                  std::optional<std::uint32_t> known_rank = {});
  ~FaultyMessenger() override;

  void send(Node to, std::vector<Frame> frames) override;
  std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                    std::chrono::milliseconds timeout) override;
  bool loses_frames() const override { return faults_->spec().loses_frames(); }
  void leave(std::chrono::milliseconds timeout) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Held {
    Node to;
    std::vector<Frame> frames;
  };
  /// Where a frame goes that is not lost.
  struct Ways {
    std::vector<Frame> now;
    std::vector<Frame> again;      ///< at once too, but by themselves
    std::vector<Frame> overtaken;  ///< by the next that is sent to the same node
  };

  void on_frames(Node from, std::vector<Frame> frames) override;
  void disturb(Node to, Frame frame, Ways& ways);
  bool is_cut_off(Node to, Clock::time_point now) const;
  void hand_on(Node to, std::vector<Frame> frames);
  void let_overtaken_go(Node to);
  void hold(Clock::time_point until, Held held);
  /// All of it, at once.
  void send_held_back();
  void run(const std::stop_token& stop);
  void saw(const Frame& frame);

  const std::shared_ptr<Faults> faults_;  // owners: this, the process's other nodes and its report
  const Node self_;
  const Node known_;  ///< to the spec: ranks change where a job goes on without those that die
  const std::optional<Node> local_peer_;
  const Clock::time_point joined_ = Clock::now();
  const FaultSpec::Slow* slow_ = nullptr;  ///< of this node
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<Node, std::uint64_t> sent_;            ///< frames, by receiver
  std::map<Node, std::vector<Frame>> overtaken_;  ///< until the next send, or for a moment
  std::multimap<Clock::time_point, Held> held_;   ///< by when they go
  Clock::time_point line_free_ = joined_;         ///< of a slow node: when its last frame is written
  std::jthread thread_;                           // last member: joined before the rest dies
};

/// Puts a FaultyMessenger into a node's line; without faults, nothing.
std::unique_ptr<Messenger> disturbed(std::unique_ptr<Messenger> messenger,
                                     const std::shared_ptr<Faults>& faults,
                                     std::optional<std::uint32_t> known_rank = {});

}  // namespace gradwire::transport
