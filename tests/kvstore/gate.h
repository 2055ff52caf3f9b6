// A link that carries one message at a time, when the test says so: what is slow about a slow link, without
// time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "transport/decorators/forwarding_messenger.h"

namespace gradwire::kvstore {

/// Messages on their way to one peer, in the order in which they were sent. Thread-safe.
class Gate {
 public:
  /// Waits until a message stands before the gate.
  void await_message() {
    std::unique_lock lock(mutex_);
    await(lock);
  }

  /// Waits for the next message and lets it through; returns the header of its one frame.
  transport::FrameHeader pass() {
    std::unique_lock lock(mutex_);
    await(lock);
    Held next = std::move(held_.front());
    held_.pop_front();
    lock.unlock();
    next.go();
    return next.header;
  }

  void hold(const transport::FrameHeader& header, std::function<void()> go) {
    {
      const std::lock_guard lock(mutex_);
      held_.push_back({header, std::move(go)});
    }
    arrived_.notify_all();
  }

 private:
  struct Held {
    transport::FrameHeader header;
    std::function<void()> go;
  };
  void await(std::unique_lock<std::mutex>& lock) {
    if (!arrived_.wait_for(lock, std::chrono::seconds(20), [this] { return !held_.empty(); }))
      throw std::runtime_error("gate: no message came within 20 s");
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Held> held_;
};

/// Puts what has a payload, and goes to `peer`, before a gate. Requires messages of one frame.
class GatedMessenger final : public transport::ForwardingMessenger {
 public:
  GatedMessenger(std::unique_ptr<transport::Messenger> line, Gate& gate, transport::Node peer)
      : transport::ForwardingMessenger(std::move(line)), gate_(gate), peer_(peer) {}

  void send(transport::Node to, std::vector<transport::Frame> frames) override {
    if (to != peer_ || frames.front().payload.size_bytes() == 0)
      return transport::ForwardingMessenger::send(to, std::move(frames));
    if (frames.size() != 1) throw std::logic_error("gate: several frames in one message");
    const auto header = frames.front().header;
    auto kept = std::make_shared<std::vector<transport::Frame>>(std::move(frames));  // owner: the closure
    gate_.hold(header, [this, to, kept] { transport::ForwardingMessenger::send(to, std::move(*kept)); });
  }

 private:
  Gate& gate_;
  const transport::Node peer_;
};

}  // namespace gradwire::kvstore
