#include "transport/mpi/mpi_packet.h"

#include <cstring>
#include <string>

namespace gradwire::transport {
namespace {

constexpr std::size_t kCountBytes = 8;  // u64: how many frames

bool is_inline(std::size_t payload_bytes) { return payload_bytes <= kInlinePayloadBytes; }

// Payloads begin at multiples of 8 bytes, as a Sink may expect.
constexpr std::size_t padded(std::size_t payload_bytes) { return (payload_bytes + 7) / 8 * 8; }

std::size_t head_bytes(const std::vector<Frame>& frames) {
  std::size_t size_bytes = kCountBytes + frames.size() * kHeaderBytes;
  for (const Frame& frame : frames) {
    if (is_inline(frame.payload.size_bytes())) size_bytes += padded(frame.payload.size_bytes());
  }
  return size_bytes;
}

std::size_t frames_in(std::span<const std::byte> head) {
  std::uint64_t count = 0;
  if (head.size() >= kCountBytes) std::memcpy(&count, head.data(), kCountBytes);
  // Divided and not multiplied: a hostile count cannot overflow.
  if (head.size() < kCountBytes || count > (head.size() - kCountBytes) / kHeaderBytes) {
    throw FrameError("mpi: a head of " + std::to_string(head.size()) + " bytes claims " +
                     std::to_string(count) + " frames");
  }
  return count;
}

}  // namespace

MpiPacket pack_for_mpi(std::vector<Frame> frames) {
  MpiPacket packet;
  const std::size_t size_bytes = head_bytes(frames);
  packet.head = Buffer::allocate(size_bytes);
  const std::span<std::byte> head = packet.head.bytes();
  // Padding is sent, too, and must not show what the memory held before.
  std::memset(head.data(), 0, size_bytes);
  const std::uint64_t count = frames.size();
  std::memcpy(head.data(), &count, kCountBytes);
  std::size_t header_at = kCountBytes;
  std::size_t payload_at = kCountBytes + frames.size() * kHeaderBytes;
  for (Frame& frame : frames) {
    // The I/O thread of the receiver checks control frames on arrival, whatever `checksum=` says of payloads.
    if (is_control(frame.header.kind)) frame.payload.seal();
    const auto header = encode_header(frame);
    std::memcpy(&head[header_at], header.data(), kHeaderBytes);
    header_at += kHeaderBytes;
    const std::size_t payload_bytes = frame.payload.size_bytes();
    if (!is_inline(payload_bytes)) {
      // After encode_header(), which reads its length and seal. MPI sends from this memory without a copy.
      packet.payloads.push_back(std::move(frame.payload));
    } else if (payload_bytes > 0) {
      std::memcpy(&head[payload_at], frame.payload.bytes().data(), payload_bytes);
      payload_at += padded(payload_bytes);
    }
  }
  return packet;
}

ArrivingParcel::ArrivingParcel(Buffer head, BufferPool& pool) : head_(std::move(head)) {
  const std::span<const std::byte> bytes = head_.bytes();
  const std::size_t count = frames_in(bytes);
  std::size_t inline_at = kCountBytes + count * kHeaderBytes;
  for (std::size_t i = 0; i < count; ++i) {
    // payload_bytes_of() checks the header's own checksum first, so a damaged length takes no memory.
    const std::size_t payload_bytes =
        payload_bytes_of(bytes.subspan(kCountBytes + i * kHeaderBytes, kHeaderBytes));
    if (!is_inline(payload_bytes)) {
      payloads_.push_back({awaited_.size(), payload_bytes});
      awaited_.push_back(pool.take(payload_bytes));
      continue;
    }
    payloads_.push_back({inline_at, payload_bytes});
    inline_at += padded(payload_bytes);
  }
  // With this, every place of a small payload is inside the head, and unpack() need not ask again.
  if (inline_at != bytes.size()) {
    throw FrameError("mpi: a head has " + std::to_string(bytes.size()) + " bytes, expected " +
                     std::to_string(inline_at) + " by its headers");
  }
}

std::vector<Frame> ArrivingParcel::unpack() && {
  std::vector<Frame> frames(payloads_.size());
  const std::span<const std::byte> head = head_.bytes();
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const auto [offset, payload_bytes] = payloads_[i];
    Frame& frame = frames[i];
    const OpenedHeader opened =
        open_header(head.subspan(kCountBytes + i * kHeaderBytes, kHeaderBytes), payload_bytes);
    frame.header = opened.header;
    frame.payload =
        is_inline(payload_bytes) ? head_.share(offset, payload_bytes) : std::move(awaited_[offset]);
    if (opened.checksum) frame.payload.seal(*opened.checksum);
    if (is_control(frame.header.kind)) require_intact(frame.payload);
  }
  return frames;
}

}  // namespace gradwire::transport
