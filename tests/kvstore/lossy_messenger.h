// A Messenger that loses letters, and what is said about them, as a connection that breaks does; and damages
// some of those that arrive.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::kvstore {

class LossyMessenger final : public transport::Messenger, private transport::Sink {
 public:
  LossyMessenger(std::unique_ptr<transport::Messenger> messenger, std::atomic<int>& lost,
                 std::atomic<int>& damaged)
      : messenger_(std::move(messenger)), lost_(lost), damaged_(damaged) {}

  void send(transport::Node to, std::vector<transport::Frame> frames) override {
    std::erase_if(frames, [this](const transport::Frame& frame) {
      if (frame.header.kind < transport::Kind::kPost || sent_++ % 4 != 1) return false;
      ++lost_;
      return true;
    });
    if (!frames.empty()) messenger_->send(to, std::move(frames));
  }

  transport::Node self() const override { return messenger_->self(); }
  transport::World world() const override { return messenger_->world(); }
  std::optional<transport::Node> local_peer() const override { return messenger_->local_peer(); }
  void attach(transport::Sink& sink) override {
    sink_ = &sink;
    messenger_->attach(*this);
  }
  void detach() override { messenger_->detach(); }
  std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                    std::chrono::milliseconds timeout) override {
    return messenger_->exchange(name, blob, timeout);
  }
  void fail(const std::string& text) override { messenger_->fail(text); }
  void leave(std::chrono::milliseconds timeout) override { messenger_->leave(timeout); }
  std::vector<transport::PeerCounters> counters() const override { return messenger_->counters(); }

 private:
  void on_frames(transport::Node from, std::vector<transport::Frame> frames) override {
    for (transport::Frame& frame : frames) {
      if (frame.header.kind < transport::Kind::kPost || frame.payload.size_bytes() == 0) continue;
      frame.payload.seal();
      if (arrived_++ % 4 != 1) continue;
      frame.payload.bytes()[frame.payload.size_bytes() / 2] ^= std::byte{4};
      ++damaged_;
    }
    sink_->on_frames(from, std::move(frames));
  }
  void on_failure(const std::string& text) override { sink_->on_failure(text); }
  void on_goodbye(transport::Node peer) override { sink_->on_goodbye(peer); }

  const std::unique_ptr<transport::Messenger> messenger_;
  std::atomic<int>& lost_;
  std::atomic<int>& damaged_;
  std::atomic<unsigned> sent_{0}, arrived_{0};
  transport::Sink* sink_ = nullptr;
};

}  // namespace gradwire::kvstore
