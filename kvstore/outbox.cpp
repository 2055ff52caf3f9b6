#include "kvstore/outbox.h"

#include <utility>

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;

Outbox::Outbox(transport::Messenger& messenger, std::shared_ptr<Loop> loop, transport::Role role,
               std::uint32_t peers, std::uint32_t first, Limits limits)
    : messenger_(messenger),
      loop_(std::move(loop)),
      role_(role),
      local_peer_(messenger.local_peer()),
      limits_(limits),
      queue_(std::make_shared<fusion::SendQueue>(peers, limits.credit_bytes)) {
  queue_->start_at(first % peers);
}

void Outbox::add(std::uint32_t rank, Frame frame) {
  if (local_peer_ == transport::Node{role_, rank}) return local_.push_back(std::move(frame));
  const std::uint64_t id = next_id_++;
  queue_->push({id, frame.header.priority, rank, transport::kHeaderBytes + frame.payload.size_bytes()});
  frames_.emplace(id, std::move(frame));
}

// Credit comes back when the socket has written the payload. What holds no payload occupies nothing for long.
Frame Outbox::metered(std::uint32_t rank, Frame frame) {
  const std::uint64_t bytes = transport::kHeaderBytes + frame.payload.size_bytes();
  if (frame.payload.size_bytes() == 0) {
    queue_->release(rank, bytes);
    return frame;
  }
  const std::span<const std::byte> view = std::as_const(frame.payload).bytes();
  const auto checksum = frame.payload.checksum();
  auto kept = std::make_shared<Buffer>(std::move(frame.payload));  // owner: the release closure
  frame.payload =
      Buffer::borrow(view, [kept = std::move(kept), loop = loop_, weak = std::weak_ptr(queue_), rank, bytes] {
        loop->post([weak, rank, bytes] {
          if (const auto queue = weak.lock()) queue->release(rank, bytes);
        });
      });
  if (checksum) frame.payload.seal(*checksum);
  return frame;
}

void Outbox::flush() {
  if (!local_.empty()) messenger_.send(*local_peer_, std::exchange(local_, std::vector<Frame>()));
  std::unordered_map<std::uint32_t, std::pair<std::uint64_t, std::vector<Frame>>> fused;
  const auto send = [&](std::uint32_t rank) {
    auto& [bytes, frames] = fused[rank];
    if (!frames.empty()) messenger_.send({role_, rank}, std::exchange(frames, std::vector<Frame>()));
    bytes = 0;
  };
  while (const auto item = queue_->pop()) {
    auto node = frames_.extract(item->id);
    auto& [bytes, frames] = fused[item->destination];
    frames.push_back(metered(item->destination, std::move(node.mapped())));
    bytes += item->bytes;
    if (bytes >= limits_.fusion_bytes) send(item->destination);
  }
  for (auto& [rank, pending] : fused) send(rank);
}

}  // namespace gradwire::kvstore
