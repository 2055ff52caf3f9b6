// A link that loses some of what its node sends, the same frames in every run.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/kvstore/job.h"
#include "transport/decorators/forwarding_messenger.h"

namespace gradwire::kvstore {

/// Loses every so many-th frame of those that concern the test, and counts them in lost.
class ForgetfulLine final : public transport::ForwardingMessenger {
 public:
  using Concerns = std::function<bool(const transport::FrameHeader&)>;

  ForgetfulLine(Line line, unsigned every, Concerns concerns, std::atomic<int>& lost)
      : transport::ForwardingMessenger(std::move(line)),
        every_(every),
        concerns_(std::move(concerns)),
        lost_(lost) {}

  void send(transport::Node to, std::vector<transport::Frame> frames) override {
    std::erase_if(frames, [this](const transport::Frame& frame) {
      if (!concerns_(frame.header) || sent_++ % every_ != 1) return false;
      ++lost_;
      return true;
    });
    if (!frames.empty()) transport::ForwardingMessenger::send(to, std::move(frames));
  }

 private:
  const unsigned every_;
  const Concerns concerns_;
  std::atomic<int>& lost_;
  std::atomic<unsigned> sent_{0};
};

/// For run_wired(): makes every link of a job one.
inline std::function<Line(Line)> losing_every(unsigned every, ForgetfulLine::Concerns concerns,
                                              std::atomic<int>& lost) {
  return [every, concerns = std::move(concerns), &lost](Line line) {
    return std::make_unique<ForgetfulLine>(std::move(line), every, concerns, lost);
  };
}

}  // namespace gradwire::kvstore
