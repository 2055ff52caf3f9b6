// A Messenger that hands everything on: what others put into a node's line to watch or disturb it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::kvstore {

class PassingMessenger : public transport::Messenger, protected transport::Sink {
 public:
  explicit PassingMessenger(std::unique_ptr<transport::Messenger> messenger)
      : messenger_(std::move(messenger)) {}

  void send(transport::Node to, std::vector<transport::Frame> frames) override {
    messenger_->send(to, std::move(frames));
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

 protected:
  void on_frames(transport::Node from, std::vector<transport::Frame> frames) override {
    sink_->on_frames(from, std::move(frames));
  }
  void on_failure(const std::string& text) override { sink_->on_failure(text); }
  void on_goodbye(transport::Node peer) override { sink_->on_goodbye(peer); }

 private:
  const std::unique_ptr<transport::Messenger> messenger_;
  transport::Sink* sink_ = nullptr;
};

}  // namespace gradwire::kvstore
