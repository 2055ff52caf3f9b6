// What tests of transport listen with: a Sink that keeps what it hears, and the text of an error.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::transport {

constexpr std::chrono::seconds kPatience{20};  // no test waits that long unless something is broken

/// Keeps what it hears, and lets a test wait for it.
class Ear final : public Sink {
 public:
  struct Heard {
    Node from;
    std::vector<Frame> frames;
  };

  void on_frames(Node from, std::vector<Frame> frames) override {
    const std::lock_guard lock(mutex_);
    frame_count_ += frames.size();
    heard_.push_back({from, std::move(frames)});
    changed_.notify_all();
  }
  void on_failure(const std::string& text) override {
    const std::lock_guard lock(mutex_);
    failures_.push_back(text);
    changed_.notify_all();
  }
  void on_goodbye(Node peer, const std::string& error) override {
    const std::lock_guard lock(mutex_);
    if (!error.empty()) errors_.push_back(error);
    goodbyes_.push_back(peer);
    changed_.notify_all();
  }

  std::vector<Heard> take_frames(std::size_t count) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [&] { return frame_count_ >= count; })) {
      ADD_FAILURE() << "heard " << frame_count_ << " frames, awaited " << count;
    }
    frame_count_ = 0;
    return std::move(heard_);
  }
  std::vector<std::string> failures(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return failures_.size() >= count; });
    return failures_;
  }
  bool hears_goodbye_of(Node peer) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return std::ranges::count(goodbyes_, peer) == 1; });
  }
  /// Of peers that errors have ended; ask goodbyes() first.
  std::vector<std::string> errors() {
    const std::lock_guard lock(mutex_);
    return errors_;
  }
  std::vector<Node> goodbyes(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return goodbyes_.size() >= count; });
    return goodbyes_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Heard> heard_;
  std::size_t frame_count_ = 0;
  std::vector<std::string> failures_;
  std::vector<Node> goodbyes_;
  std::vector<std::string> errors_;
};

/// What call throws, with the name of its kind; "no error" where it returns.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const TimeoutError& error) {
    return std::string("TimeoutError: ") + error.what();
  } catch (const TransportError& error) {
    return std::string("TransportError: ") + error.what();
  }
  return "no error";
}

}  // namespace gradwire::transport
