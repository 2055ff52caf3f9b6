// A server's line that dies, with the server, at a moment that a test names: its process killed just then.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "transport/decorators/forwarding_messenger.h"
#include "transport/inproc/inproc.h"

namespace gradwire::kvstore {

/// The count-th frame of a kind that the server sends, which still arrives, or takes, which it does not see.
struct Moment {
  const char* name = "";
  bool sends = false;
  transport::Kind kind = transport::Kind::kPush;
  int count = 1;
};

class DoomedMessenger final : public transport::ForwardingMessenger {
 public:
  DoomedMessenger(std::unique_ptr<transport::Messenger> messenger, transport::InprocNetwork& network,
                  Moment moment, std::atomic<int>& deaths)
      : transport::ForwardingMessenger(std::move(messenger)),
        network_(network),
        moment_(moment),
        deaths_(deaths) {}

  void send(transport::Node to, std::vector<transport::Frame> frames) override {
    if (!moment_.sends) return transport::ForwardingMessenger::send(to, std::move(frames));
    for (transport::Frame& frame : frames) {
      const bool is_last = is_the_moment(frame);
      std::vector<transport::Frame> one;
      one.push_back(std::move(frame));
      transport::ForwardingMessenger::send(to, std::move(one));
      if (is_last) die();
    }
  }

 private:
  void on_frames(transport::Node from, std::vector<transport::Frame> frames) override {
    for (const transport::Frame& frame : frames) {
      if (!moment_.sends && is_the_moment(frame)) return die();
    }
    transport::ForwardingMessenger::on_frames(from, std::move(frames));
  }

  bool is_the_moment(const transport::Frame& frame) {
    return frame.header.kind == moment_.kind && ++seen_ == moment_.count;
  }

  void die() {
    network_.lose(self().rank);
    ++deaths_;
  }

  transport::InprocNetwork& network_;
  const Moment moment_;
  std::atomic<int>& deaths_;
  std::atomic<int> seen_{0};
};

}  // namespace gradwire::kvstore
