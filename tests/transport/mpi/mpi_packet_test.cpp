#include "transport/mpi/mpi_packet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace gradwire::transport {
namespace {

using ::testing::HasSubstr;

Buffer payload_of(std::size_t size_bytes, unsigned seed) {
  Buffer payload = Buffer::allocate(size_bytes);
  for (std::size_t i = 0; i < size_bytes; ++i) payload.bytes()[i] = static_cast<std::byte>(i * 7 + seed);
  return payload;
}

std::vector<Frame> frames_of(const std::vector<std::size_t>& sizes) {
  std::vector<Frame> frames;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Frame frame;
    frame.header.kind = Kind::kPush;
    frame.header.key = i;
    frame.payload = payload_of(sizes[i], static_cast<unsigned>(i));
    frames.push_back(std::move(frame));
  }
  return frames;
}

// What MPI does: fills the buffers that wait for messages.
ArrivingParcel arrive(const MpiPacket& packet, BufferPool& pool) {
  ArrivingParcel arriving(packet.head.copy(), pool);
  EXPECT_EQ(arriving.awaited().size(), packet.payloads.size());
  for (std::size_t i = 0; i < packet.payloads.size(); ++i) {
    const Buffer& sent = packet.payloads[i];
    EXPECT_EQ(arriving.awaited()[i].size_bytes(), sent.size_bytes());
    std::memcpy(arriving.awaited()[i].bytes().data(), sent.bytes().data(), sent.size_bytes());
  }
  return arriving;
}

const std::vector<std::size_t> kSizes = {0, 1, 8,       9, kInlinePayloadBytes, kInlinePayloadBytes + 1,
                                         0, 3, 100'000, 17};

TEST(MpiPacket, FramesComeOutAsTheyWentIn) {
  BufferPool pool;
  const std::vector<Frame> frames = std::move(arrive(pack_for_mpi(frames_of(kSizes)), pool)).unpack();
  ASSERT_EQ(frames.size(), kSizes.size());
  for (std::size_t i = 0; i < frames.size(); ++i) {
    EXPECT_EQ(frames[i].header.key, i);
    const Buffer expected = payload_of(kSizes[i], static_cast<unsigned>(i));
    ASSERT_EQ(frames[i].payload.size_bytes(), kSizes[i]);
    if (kSizes[i] > 0) {
      EXPECT_EQ(std::memcmp(frames[i].payload.bytes().data(), expected.bytes().data(), kSizes[i]), 0) << i;
    }
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(frames[i].payload.bytes().data()) % 8, 0u);
  }
}

TEST(MpiPacket, OnlyLargePayloadsAreMessagesOfTheirOwnAndAreNotCopied) {
  auto frames = frames_of(kSizes);
  const std::byte* large = frames[8].payload.bytes().data();
  const MpiPacket packet = pack_for_mpi(std::move(frames));
  ASSERT_EQ(packet.payloads.size(), 2u);
  EXPECT_EQ(packet.payloads[0].size_bytes(), kInlinePayloadBytes + 1);
  EXPECT_EQ(packet.payloads[1].bytes().data(), large);
}

TEST(MpiPacket, SmallPayloadsAreReleasedAtOnce) {
  int released = 0;
  const std::vector<std::byte> bytes(100);
  std::vector<Frame> frames(1);
  frames[0].header.kind = Kind::kPush;
  frames[0].payload = Buffer::borrow(bytes, [&] { ++released; });
  const MpiPacket packet = pack_for_mpi(std::move(frames));
  EXPECT_EQ(released, 1);
}

std::string refusal_of(Buffer head) {
  BufferPool pool;
  try {
    ArrivingParcel arriving(std::move(head), pool);
  } catch (const FrameError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MpiPacket, HeadsThatAreNoneAreRefused) {
  EXPECT_THAT(refusal_of(Buffer::allocate(7)), HasSubstr("a head of 7 bytes claims 0 frames"));
  Buffer head = pack_for_mpi(frames_of({5})).head;
  EXPECT_THAT(refusal_of(head.share(0, head.size_bytes() - 8)), HasSubstr("expected 128 by its headers"));
  head.bytes()[0] = std::byte{2};
  EXPECT_THAT(refusal_of(head.copy()), HasSubstr("a head of 128 bytes claims 2 frames"));
  head.bytes()[7] = std::byte{0xFF};
  EXPECT_THAT(refusal_of(head.copy()), HasSubstr("claims 18374686479671623682 frames"));
}

// Who takes a payload compares it with its seal; headers and control frames are compared here.
TEST(MpiPacket, EveryChangedByteIsNoticed) {
  BufferPool pool;
  std::vector<Frame> frames = frames_of({5, kInlinePayloadBytes + 1, 16});
  for (Frame& frame : frames) frame.payload.seal();
  const MpiPacket packet = pack_for_mpi(std::move(frames));
  const auto is_noticed = [&] {
    try {
      const std::vector<Frame> arrived = std::move(arrive(packet, pool)).unpack();
      return !std::ranges::all_of(arrived, [](const Frame& frame) { return frame.payload.is_intact(); });
    } catch (const FrameError&) {
      return true;
    }
  };
  ASSERT_FALSE(is_noticed());
  const std::vector<std::span<std::byte>> parts = {Buffer(packet.head.share()).bytes(),
                                                   Buffer(packet.payloads[0].share()).bytes()};
  const std::size_t padding = 8 + 3 * kHeaderBytes + 5;  // three bytes behind the first payload
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (std::size_t i = 0; i < parts[part].size(); ++i) {
      if (part == 0 && i >= padding && i < padding + 3) continue;
      parts[part][i] ^= std::byte{0x10};
      EXPECT_TRUE(is_noticed()) << "part " << part << ", byte " << i;
      parts[part][i] ^= std::byte{0x10};
    }
  }
}

TEST(MpiPacket, ControlFramesAreComparedOnArrival) {
  BufferPool pool;
  std::vector<Frame> frames = frames_of({5});
  frames[0].header.kind = Kind::kFailure;
  const MpiPacket packet = pack_for_mpi(std::move(frames));
  Buffer head = packet.head.copy();
  EXPECT_NO_THROW(ArrivingParcel(head.copy(), pool).unpack());
  head.bytes()[8 + kHeaderBytes] ^= std::byte{1};
  EXPECT_THROW(ArrivingParcel(head.copy(), pool).unpack(), FrameError);
}

TEST(MpiPacket, SealsTravelAndNobodyElseGetsOne) {
  BufferPool pool;
  std::vector<Frame> frames = frames_of({5, 5, kInlinePayloadBytes + 1, kInlinePayloadBytes + 1});
  frames[1].payload.seal();
  frames[3].payload.seal();
  const std::optional<std::uint32_t> small = frames[1].payload.checksum(),
                                     large = frames[3].payload.checksum();
  const auto arrived = std::move(arrive(pack_for_mpi(std::move(frames)), pool)).unpack();
  EXPECT_EQ(arrived[0].payload.checksum(), std::nullopt);
  EXPECT_EQ(arrived[1].payload.checksum(), small);
  EXPECT_EQ(arrived[2].payload.checksum(), std::nullopt);
  EXPECT_EQ(arrived[3].payload.checksum(), large);
}

}  // namespace
}  // namespace gradwire::transport
