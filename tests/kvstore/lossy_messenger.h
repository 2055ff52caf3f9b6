// A Messenger that loses letters, and what is said about them, as a connection that breaks does; and damages
// some of those that arrive.
#pragma once

#include <atomic>

#include "tests/kvstore/passing_messenger.h"

namespace gradwire::kvstore {

class LossyMessenger final : public PassingMessenger {
 public:
  LossyMessenger(std::unique_ptr<transport::Messenger> messenger, std::atomic<int>& lost,
                 std::atomic<int>& damaged)
      : PassingMessenger(std::move(messenger)), lost_(lost), damaged_(damaged) {}

  void send(transport::Node to, std::vector<transport::Frame> frames) override {
    std::erase_if(frames, [this](const transport::Frame& frame) {
      if (frame.header.kind < transport::Kind::kPost || sent_++ % 4 != 1) return false;
      ++lost_;
      return true;
    });
    if (!frames.empty()) PassingMessenger::send(to, std::move(frames));
  }

 private:
  void on_frames(transport::Node from, std::vector<transport::Frame> frames) override {
    for (transport::Frame& frame : frames) {
      if (frame.header.kind < transport::Kind::kPost || frame.payload.size_bytes() == 0) continue;
      frame.payload.seal();
      if (arrived_++ % 4 != 1) continue;
      frame.payload.bytes()[frame.payload.size_bytes() / 2] ^= std::byte{4};
      ++damaged_;
    }
    PassingMessenger::on_frames(from, std::move(frames));
  }

  std::atomic<int>& lost_;
  std::atomic<int>& damaged_;
  std::atomic<unsigned> sent_{0}, arrived_{0};
};

}  // namespace gradwire::kvstore
