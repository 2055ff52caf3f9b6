// Ear is a Sink that keeps what it hears, and lets a test wait for it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::transport {

inline constexpr std::chrono::seconds kPatience{20};  // no test waits that long unless something is broken

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
  void on_goodbye(Node peer) override {
    const std::lock_guard lock(mutex_);
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
  std::vector<Node> goodbyes(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return goodbyes_.size() >= count; });
    return goodbyes_;
  }
  bool hears_goodbye_of(Node peer) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return std::ranges::count(goodbyes_, peer) == 1; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Heard> heard_;
  std::size_t frame_count_ = 0;
  std::vector<std::string> failures_;
  std::vector<Node> goodbyes_;
};

}  // namespace gradwire::transport
