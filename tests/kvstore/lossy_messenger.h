// A Messenger that loses letters, and what is said about them, as a connection that breaks does.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::kvstore {

class LossyMessenger final : public transport::Messenger {
 public:
  LossyMessenger(std::unique_ptr<transport::Messenger> messenger, std::atomic<int>& lost)
      : messenger_(std::move(messenger)), lost_(lost) {}

  void send(transport::Node to, std::vector<transport::Frame> frames) override {
    std::erase_if(frames, [this](const transport::Frame& frame) {
      if (frame.header.kind < transport::Kind::kPost || count_++ % 4 != 1) return false;
      ++lost_;
      return true;
    });
    if (!frames.empty()) messenger_->send(to, std::move(frames));
  }

  transport::Node self() const override { return messenger_->self(); }
  transport::World world() const override { return messenger_->world(); }
  std::optional<transport::Node> local_peer() const override { return messenger_->local_peer(); }
  void attach(transport::Sink& sink) override { messenger_->attach(sink); }
  void detach() override { messenger_->detach(); }
  std::vector<std::string> exchange(std::string_view name, std::string_view blob,
                                    std::chrono::milliseconds timeout) override {
    return messenger_->exchange(name, blob, timeout);
  }
  void fail(const std::string& text) override { messenger_->fail(text); }
  void leave(std::chrono::milliseconds timeout) override { messenger_->leave(timeout); }
  std::vector<transport::PeerCounters> counters() const override { return messenger_->counters(); }

 private:
  const std::unique_ptr<transport::Messenger> messenger_;
  std::atomic<int>& lost_;
  std::atomic<unsigned> count_{0};
};

}  // namespace gradwire::kvstore
