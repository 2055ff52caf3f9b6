#include "transport/zmq/scheduler_sender.h"

#include <memory>
#include <random>
#include <span>
#include <utility>

namespace gradwire::transport {

Buffer to_buffer(std::string text) {
  auto owner = std::make_shared<std::string>(std::move(text));  // owners: the Buffer and its shares
  const auto bytes = std::as_writable_bytes(std::span(*owner));
  return Buffer(std::move(owner), bytes);
}

void SchedulerSender::begin_generation() {
  std::random_device random;
  epoch_ = std::uint64_t{random()} << 32 | random() | 1;  // never 0
  notices_.clear();  // members of the generation before hear of its end by the change of membership
}

void SchedulerSender::send(const std::string& peer, Kind kind, std::uint64_t key, std::uint64_t step,
                           Buffer payload) const {
  FrameHeader header;
  header.kind = kind;
  header.sender = {Role::kScheduler, 0};
  header.epoch = epoch_;
  header.key = key;
  header.step = step;
  send_(peer, {header, std::move(payload)});
}

void SchedulerSender::send_failure(const std::string& peer, FailureCause cause, std::string text) const {
  send(peer, Kind::kFailure, static_cast<std::uint64_t>(cause), 0, to_buffer(std::move(text)));
}

void SchedulerSender::acknowledge_goodbye(const std::string& peer) const {
  send(peer, Kind::kGoodbye, static_cast<std::uint64_t>(GoodbyeStage::kAcknowledged));
}

void SchedulerSender::announce(const SchedulerPeers& peers, Kind kind, std::uint64_t key, std::string text) {
  notices_.push_back({kind, key, to_buffer(std::move(text))});
  for (const auto& [id, peer] : peers) {
    if (peer.hears_news()) send_notices(id, notices_.size() - 1);
  }
}

void SchedulerSender::send_notices(const std::string& peer, std::size_t heard) const {
  for (std::size_t i = heard; i < notices_.size(); ++i) {
    const Notice& notice = notices_[i];
    send(peer, notice.kind, notice.key, i + 1, notice.text.share());  // heartbeats count what was heard
  }
}

}  // namespace gradwire::transport
