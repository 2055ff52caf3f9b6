// How every Messenger must carry frames, whatever carries them. Ranks run as threads; messenger_jobs.h lists
// the transports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <thread>

#include "tests/transport/ear.h"
#include "tests/transport/frames.h"
#include "tests/transport/messenger_jobs.h"

namespace gradwire::transport {
namespace {

using namespace std::chrono_literals;

TEST_P(TransportConformance, NodesKnowThemselvesAndTheWorld) {
  const auto job = start(2, 2);
  EXPECT_EQ(job->worker(1).self(), kWorker1);
  EXPECT_EQ(job->server(0).self(), kServer0);
  const World world = job->worker(0).world();
  EXPECT_EQ(world.workers, 2u);
  EXPECT_EQ(world.servers, 2u);
  EXPECT_NE(world.epoch, 0u);
  EXPECT_EQ(job->server(1).world(), world);
}

TEST_P(TransportConformance, FramesArriveWithHeaderPayloadSenderAndEpoch) {
  const auto job = start(2, 2);
  Ear ear;
  job->server(1).attach(ear);
  Frame frame = make_frame(Kind::kPush, 7, 1000);
  frame.header.step = 3;
  frame.header.priority = -5;
  frame.header.codec_parameters = {1, 2, 3, 4};
  FrameHeader expected = frame.header;
  expected.sender = kWorker1;
  expected.epoch = job->worker(1).world().epoch;
  job->worker(1).send(kServer1, one(std::move(frame)));

  const auto heard = ear.take_frames(1);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].from, kWorker1);
  EXPECT_EQ(heard[0].frames[0].header, expected);
  EXPECT_TRUE(has_payload_of(heard[0].frames[0], 7, 1000));
  job->server(1).detach();
}

TEST_P(TransportConformance, OrderIsKeptPerPeerPair) {
  constexpr std::uint64_t kCount = 3000;
  const auto job = start(2, 1);
  Ear ear;
  job->server(0).attach(ear);
  const auto send_all = [&](std::uint32_t rank) {
    for (std::uint64_t step = 0; step < kCount; ++step) {
      Frame frame =
          make_frame(Kind::kPush, GetParam().keeps_order_across_keys ? step % 5 : 1, step % 3 * 700);
      frame.header.step = step;
      job->worker(rank).send(kServer0, one(std::move(frame)));
    }
  };
  std::thread other(send_all, 1);
  send_all(0);
  other.join();
  std::map<Node, std::uint64_t> next;
  for (const auto& heard : ear.take_frames(2 * kCount)) {
    for (const Frame& frame : heard.frames) ASSERT_EQ(frame.header.step, next[heard.from]++);
  }
  EXPECT_EQ(next[kWorker0], kCount);
  EXPECT_EQ(next[kWorker1], kCount);
  job->server(0).detach();
}

TEST_P(TransportConformance, FusedFramesArriveTogether) {
  const auto job = start(1, 1);
  Ear ear;
  job->server(0).attach(ear);
  std::vector<Frame> frames;
  for (std::uint64_t key = 0; key < 100; ++key)
    frames.push_back(make_frame(Kind::kPush, key, key * 13 % 900));
  job->worker(0).send(kServer0, std::move(frames));
  const auto heard = ear.take_frames(100);
  ASSERT_EQ(heard.size(), 1u);
  for (std::uint64_t key = 0; key < 100; ++key) {
    EXPECT_EQ(heard[0].frames[key].header.key, key);
    EXPECT_TRUE(has_payload_of(heard[0].frames[key], key, key * 13 % 900)) << key;
  }
  job->server(0).detach();
}

TEST_P(TransportConformance, RepliesReachTheWorkerThatAsked) {
  const auto job = start(3, 1);
  Ear server_ear;
  std::array<Ear, 3> ears;
  job->server(0).attach(server_ear);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    job->worker(rank).attach(ears[rank]);
    job->worker(rank).send(kServer0, one(make_frame(Kind::kPull, rank)));
  }
  for (const auto& heard : server_ear.take_frames(3)) {
    job->server(0).send(heard.from, one(make_frame(Kind::kValue, heard.frames[0].header.key + 10, 600)));
  }
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto heard = ears[rank].take_frames(1);
    EXPECT_EQ(heard[0].from, kServer0);
    EXPECT_EQ(heard[0].frames[0].header.key, rank + 10);
    EXPECT_TRUE(has_payload_of(heard[0].frames[0], rank + 10, 600));
    job->worker(rank).detach();
  }
  job->server(0).detach();
}

TEST_P(TransportConformance, EmptyAndLargePayloadsArriveWhole) {
  constexpr std::size_t kLarge = std::size_t{8} << 20;
  const auto job = start(1, 1);
  Ear ear;
  job->server(0).attach(ear);
  const std::vector<std::size_t> sizes = {0, 1, 511, 512, 513, 8191, 8192, kLarge, 0, kLarge + 3};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    job->worker(0).send(kServer0, one(make_frame(Kind::kPush, 4, sizes[i])));
  }
  const auto heard = ear.take_frames(sizes.size());
  ASSERT_EQ(heard.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Buffer& payload = heard[i].frames[0].payload;
    EXPECT_TRUE(has_payload_of(heard[i].frames[0], 4, sizes[i])) << sizes[i];
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(payload.bytes().data()) % 8, 0u)
        << "payloads are aligned to 8 bytes";
  }
  job->server(0).detach();
}

TEST_P(TransportConformance, BorrowedPayloadsAreReleasedExactlyOnce) {
  std::vector<std::byte> bytes(100'000, std::byte{42});
  std::atomic<int> released{0};
  {
    const auto job = start(1, 2);
    std::array<Ear, 2> ears;
    job->server(0).attach(ears[0]);
    job->server(1).attach(ears[1]);
    Frame to_first = make_frame(Kind::kPush, 1);
    to_first.payload = Buffer::borrow(bytes, [&] { ++released; });
    Frame to_second = make_frame(Kind::kPush, 1);
    to_second.payload = to_first.payload.share();
    Frame held_back = make_frame(Kind::kPush, 1);
    held_back.payload = to_first.payload.share();
    job->worker(0).send(kServer0, one(std::move(to_first)));
    job->worker(0).send(kServer1, one(std::move(to_second)));
    for (Ear& ear : ears) {
      const auto heard = ear.take_frames(1);
      EXPECT_EQ(heard[0].frames[0].payload.bytes().back(), std::byte{42});
    }
    EXPECT_EQ(released, 0) << "a share still lives";
    held_back = Frame();
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (released == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(released, 1);
    job->server(0).detach();
    job->server(1).detach();
  }
  EXPECT_EQ(released, 1);
}

TEST_P(TransportConformance, AttachHandsOverWhatCameEarlier) {
  const auto job = start(1, 1);
  for (std::uint64_t step = 0; step < 10; ++step) {
    Frame frame = make_frame(Kind::kPush, 1, 10);
    frame.header.step = step;
    job->worker(0).send(kServer0, one(std::move(frame)));
  }
  std::this_thread::sleep_for(50ms);
  Ear ear;
  job->server(0).attach(ear);
  const auto heard = ear.take_frames(10);
  for (std::uint64_t step = 0; step < 10; ++step) EXPECT_EQ(heard[step].frames[0].header.step, step);
  job->server(0).detach();

  job->worker(0).send(kServer0, one(make_frame(Kind::kPush, 2)));
  std::this_thread::sleep_for(50ms);
  Ear second;
  job->server(0).attach(second);
  EXPECT_EQ(second.take_frames(1)[0].frames[0].header.key, 2u);
  job->server(0).detach();
}

TEST_P(TransportConformance, CountersAreTheBytesOfBothSides) {
  const auto job = start(2, 1);
  Ear ear;
  job->server(0).attach(ear);
  const Counters sent_before = counters_with(job->worker(1), kServer0);
  const Counters received_before = counters_with(job->server(0), kWorker1);
  std::uint64_t bytes = 0;
  for (const std::size_t size : {0, 17, 5000, 200'000}) {
    job->worker(1).send(kServer0, one(make_frame(Kind::kPush, 3, size)));
    bytes += kHeaderBytes + size;
  }
  ear.take_frames(4);
  const Counters sent = counters_with(job->worker(1), kServer0);
  const Counters received = counters_with(job->server(0), kWorker1);
  EXPECT_EQ(sent.bytes_sent - sent_before.bytes_sent, bytes);
  EXPECT_EQ(sent.frames_sent - sent_before.frames_sent, 4u);
  EXPECT_EQ(received.bytes_received - received_before.bytes_received, bytes);
  EXPECT_EQ(received.frames_received - received_before.frames_received, 4u);
  EXPECT_EQ(sent.bytes_received, sent_before.bytes_received);
  job->server(0).detach();
}

TEST_P(TransportConformance, SendsThatCannotBeAreInvalidArguments) {
  const auto job = start(2, 1);
  Messenger& worker = job->worker(0);
  EXPECT_THROW(worker.send(kServer1, one(make_frame(Kind::kPush, 1))), std::invalid_argument);
  EXPECT_THROW(worker.send(kWorker1, one(make_frame(Kind::kPush, 1))), std::invalid_argument);
  EXPECT_THROW(worker.send({Role::kScheduler, 0}, one(make_frame(Kind::kPush, 1))), std::invalid_argument);
  EXPECT_THROW(worker.send(kServer0, one(make_frame(Kind::kGoodbye, 1))), std::invalid_argument);
  EXPECT_THROW(job->server(0).send({Role::kWorker, 2}, one(make_frame(Kind::kReply, 1))),
               std::invalid_argument);
  EXPECT_THROW(job->server(0).exchange("init", "", 1s), std::invalid_argument);
  EXPECT_THROW(worker.exchange(std::string_view("a\0b", 3), "", 1s), std::invalid_argument);
}

TEST_P(TransportConformance, ManyThreadsMaySendAtOnce) {
  constexpr std::uint64_t kCount = 500;
  const auto job = start(1, 2);
  std::array<Ear, 2> ears;
  job->server(0).attach(ears[0]);
  job->server(1).attach(ears[1]);
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::uint64_t i = 0; i < kCount; ++i) {
          job->worker(0).send({Role::kServer, static_cast<std::uint32_t>(i % 2)},
                              one(make_frame(Kind::kPush, thread, 300)));
        }
      });
    }
  }
  for (Ear& ear : ears) {
    std::size_t frames = 0;
    for (const auto& heard : ear.take_frames(4 * kCount / 2)) frames += heard.frames.size();
    EXPECT_EQ(frames, 4 * kCount / 2);
  }
  job->server(0).detach();
  job->server(1).detach();
}
INSTANTIATE_TEST_SUITE_P(Transports, TransportConformance, ::testing::ValuesIn(kTransports), transport_name);

}  // namespace
}  // namespace gradwire::transport
