// LoggedMessenger writes one log line for each frame that a node sends or receives
// (GRADWIRE_LOG_LEVEL=debug, ps-lite's PS_VERBOSE=2). It leaves out the transport's own frames.
//
// Threading: as Messenger; lines come from the threads that send and receive. Any thread may use
// MessageLines.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/decorators/forwarding_messenger.h"

namespace gradwire::transport {

using TakeLine = std::function<void(std::string line)>;

class LoggedMessenger final : public ForwardingMessenger {
 public:
  LoggedMessenger(std::unique_ptr<Messenger> messenger, TakeLine take);

  void send(Node to, std::vector<Frame> frames) override;

 private:
  void on_frames(Node from, std::vector<Frame> frames) override;

  const TakeLine take_;
  const Node self_;
};

/// Wraps a node's messenger in a LoggedMessenger; without a receiver of lines it returns the messenger.
std::unique_ptr<Messenger> logged(std::unique_ptr<Messenger> messenger, const TakeLine& take);

/// Keeps up to `most` lines until they are fetched; of further ones only their number.
class MessageLines {
 public:
  explicit MessageLines(std::size_t most = 10'000) : most_(most) {}

  void add(std::string line);
  /// Hands out what came since the last time, in order.
  std::vector<std::string> take();

 private:
  const std::size_t most_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
  std::size_t left_out_ = 0;
};

}  // namespace gradwire::transport
