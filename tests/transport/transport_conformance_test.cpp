// What every Messenger must do, whatever carries the frames. Ranks run as threads.
// A new transport joins with one line at the bottom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <numeric>
#include <thread>

#include "tests/transport/ear.h"
#include "tests/transport/frames.h"
#include "transport/inproc.h"
#include "transport/zmq_messenger.h"

namespace gradwire::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// A job whose every node is a Messenger of this process.
class Job {
 public:
  virtual ~Job() { nodes_.clear(); }
  Messenger& worker(std::uint32_t rank) { return *nodes_.at({Role::kWorker, rank}); }
  Messenger& server(std::uint32_t rank) { return *nodes_.at({Role::kServer, rank}); }
  void end(Node node) { nodes_.erase(node); }

 protected:
  std::map<Node, std::unique_ptr<Messenger>> nodes_;
};

std::vector<Node> all_nodes(std::uint32_t workers, std::uint32_t servers) {
  std::vector<Node> nodes;
  for (std::uint32_t rank = 0; rank < workers; ++rank) nodes.push_back({Role::kWorker, rank});
  for (std::uint32_t rank = 0; rank < servers; ++rank) nodes.push_back({Role::kServer, rank});
  return nodes;
}

class InprocJob final : public Job {
 public:
  InprocJob(std::uint32_t workers, std::uint32_t servers) {
    InprocNetwork network(workers, servers);
    for (const Node node : all_nodes(workers, servers)) nodes_[node] = network.connect(node);
  }
};

class ZmqJob final : public Job {
 public:
  ZmqJob(ZmqOptions options, std::uint32_t workers, std::uint32_t servers) {
    options.workers = workers;
    options.servers = servers;
    scheduler_ = std::make_unique<Scheduler>(options);
    options.scheduler = scheduler_->endpoint();
    std::map<Node, std::future<std::unique_ptr<Messenger>>> joining;
    for (const Node node : all_nodes(workers, servers)) {
      options.role = node.role;
      options.rank = node.rank;
      joining[node] = std::async(std::launch::async, [options] { return connect_zmq(options); });
    }
    for (auto& [node, future] : joining) nodes_[node] = future.get();
  }
  ~ZmqJob() override {
    // Workers first, as in a job: the scheduler ends it, and servers need not wait for anyone.
    for (auto it = nodes_.rbegin(); it != nodes_.rend(); ++it) it->second->leave(2s);
  }

 private:
  std::unique_ptr<Scheduler> scheduler_;
};

ZmqOptions zmq_options(const std::string& scheduler, std::uint32_t streams = 1) {
  ZmqOptions options;
  options.scheduler = scheduler;
  options.streams_per_peer = streams;
  options.rendezvous_timeout = 20s;
  return options;
}

struct Transport {
  const char* name;
  std::unique_ptr<Job> (*start)(std::uint32_t workers, std::uint32_t servers);
  bool keeps_order_across_keys = true;
};

class TransportConformance : public ::testing::TestWithParam<Transport> {
 protected:
  std::unique_ptr<Job> start(std::uint32_t workers, std::uint32_t servers) {
    return GetParam().start(workers, servers);
  }
};

constexpr Node kWorker0{Role::kWorker, 0};
constexpr Node kWorker1{Role::kWorker, 1};
constexpr Node kServer0{Role::kServer, 0};
constexpr Node kServer1{Role::kServer, 1};

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

TEST_P(TransportConformance, ExchangesGiveEveryBlobInRankOrder) {
  const auto job = start(3, 1);
  std::vector<std::future<void>> ranks;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      for (int i = 0; i < 20; ++i) {
        const std::string blob =
            std::string("r") + std::to_string(rank) + std::string(1, '\0') + std::to_string(i);
        const auto blobs = job->worker(rank).exchange("round", blob, kPatience);
        ASSERT_EQ(blobs.size(), 3u);
        for (std::uint32_t other = 0; other < 3; ++other) {
          ASSERT_EQ(blobs[other],
                    std::string("r") + std::to_string(other) + std::string(1, '\0') + std::to_string(i));
        }
      }
      const std::string large(3'000'000, static_cast<char>('a' + rank));
      const auto blobs = job->worker(rank).exchange("large", large, kPatience);
      for (std::uint32_t other = 0; other < 3; ++other) {
        ASSERT_EQ(blobs[other], std::string(3'000'000, static_cast<char>('a' + other)));
      }
      ASSERT_THAT(job->worker(rank).exchange("empty", "", kPatience), ElementsAre("", "", ""));
    }));
  }
  for (auto& rank : ranks) rank.get();
}

TEST_P(TransportConformance, ALateExchangeNamesTheMissingRanksAndMeetsLater) {
  const auto job = start(4, 0);
  const auto come = [&](std::uint32_t rank, milliseconds timeout) {
    return std::async(std::launch::async, [&job, rank, timeout] {
      return error_of([&] { job->worker(rank).exchange("init", std::to_string(rank), timeout); });
    });
  };
  auto first = come(0, 300ms);
  auto third = come(2, 300ms);
  const auto names_both = AllOf(HasSubstr("TimeoutError"), HasSubstr("exchange 0 ('init')"),
                                HasSubstr("worker 1 and worker 3 did not come within 300 ms"));
  EXPECT_THAT(first.get(), names_both);
  EXPECT_THAT(third.get(), names_both);
  auto second = come(1, kPatience);
  auto fourth = come(3, kPatience);
  EXPECT_EQ(second.get(), "no error") << "the blobs of those that gave up are there";
  EXPECT_EQ(fourth.get(), "no error");
}

TEST_P(TransportConformance, ExchangesOfDifferentNamesFailTheJobNamingBoth) {
  const auto job = start(2, 1);
  Ear ear;
  job->server(0).attach(ear);
  auto other = std::async(std::launch::async, [&] {
    return error_of([&] { job->worker(1).exchange("barrier", "", kPatience); });
  });
  const auto names_both = AllOf(HasSubstr("TransportError"), HasSubstr("exchange 0"),
                                HasSubstr("worker 0 is in 'init' while worker 1 is in 'barrier'"));
  EXPECT_THAT(error_of([&] { job->worker(0).exchange("init", "", kPatience); }), names_both);
  EXPECT_THAT(other.get(), names_both);
  EXPECT_THAT(ear.failures(1),
              ElementsAre(HasSubstr("worker 0 is in 'init' while worker 1 is in 'barrier'")));
  job->server(0).detach();
}

TEST_P(TransportConformance, AWorkerThatLeavesEndsTheExchangeOfTheOthersAtOnce) {
  const auto job = start(3, 0);
  auto waiting = std::async(
      std::launch::async, [&] { return error_of([&] { job->worker(0).exchange("init", "", kPatience); }); });
  std::this_thread::sleep_for(50ms);
  const auto before = std::chrono::steady_clock::now();
  job->worker(2).leave(2s);
  const auto names_it = AllOf(HasSubstr("TransportError"), HasSubstr("worker 2 has left the job"));
  EXPECT_THAT(waiting.get(), names_it);
  EXPECT_THAT(error_of([&] { job->worker(1).exchange("init", "", kPatience); }), names_it);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
}

TEST_P(TransportConformance, GoodbyeComesAfterTheLastFrameAndEndsSending) {
  constexpr std::uint64_t kCount = 200;
  const auto job = start(2, 1);
  Ear server_ear;
  Ear worker_ear;
  job->server(0).attach(server_ear);
  job->worker(0).attach(worker_ear);
  for (std::uint64_t step = 0; step < kCount; ++step) {
    job->worker(1).send(kServer0, one(make_frame(Kind::kPush, step, 20'000)));
  }
  job->worker(1).leave(5s);
  job->worker(1).leave(5s);  // idempotent
  EXPECT_THAT(server_ear.goodbyes(1), ElementsAre(kWorker1));
  EXPECT_THAT(worker_ear.goodbyes(1), ElementsAre(kWorker1));
  std::size_t frames = 0;
  for (const auto& heard : server_ear.take_frames(kCount)) frames += heard.frames.size();
  EXPECT_EQ(frames, kCount) << "leave() flushes";
  EXPECT_THAT(error_of([&] { job->worker(1).send(kServer0, one(make_frame(Kind::kPush, 1))); }),
              HasSubstr("worker 1 has left the job"));
  EXPECT_THAT(error_of([&] { job->worker(1).exchange("init", "", 1s); }),
              HasSubstr("worker 1 has left the job"));
  EXPECT_NO_THROW(job->server(0).send(kWorker1, one(make_frame(Kind::kReply, 1)))) << "dropped: it has left";
  EXPECT_THAT(server_ear.failures(0), ElementsAre());
  job->server(0).detach();
  job->worker(0).detach();
}

TEST_P(TransportConformance, DestroyingAMessengerIsLeaving) {
  const auto job = start(2, 1);
  Ear ear;
  job->server(0).attach(ear);
  job->worker(1).send(kServer0, one(make_frame(Kind::kPush, 9, 5000)));
  job->end(kWorker1);
  EXPECT_THAT(ear.goodbyes(1), ElementsAre(kWorker1));
  EXPECT_EQ(ear.take_frames(1)[0].frames[0].header.key, 9u);
  job->end(kWorker0);
  EXPECT_THAT(ear.goodbyes(2), ElementsAre(kWorker1, kWorker0));
  EXPECT_THAT(ear.failures(0), ElementsAre());
  job->server(0).detach();
}

TEST_P(TransportConformance, FailReachesEveryRankOnceAndEndsSending) {
  const auto job = start(2, 2);
  std::map<Node, Ear> ears;
  for (const Node node : {kWorker0, kWorker1}) job->worker(node.rank).attach(ears[node]);
  for (const Node node : {kServer0, kServer1}) job->server(node.rank).attach(ears[node]);
  job->worker(1).fail("worker 1: the disk is full");
  for (auto& [node, ear] : ears) {
    EXPECT_THAT(ear.failures(1), ElementsAre("worker 1: the disk is full")) << to_string(node);
  }
  job->worker(1).fail("a second cause");
  job->server(0).fail("a third cause");
  const auto first_cause = HasSubstr("TransportError: worker 1: the disk is full");
  EXPECT_THAT(error_of([&] { job->worker(1).send(kServer0, one(make_frame(Kind::kPush, 1))); }), first_cause);
  EXPECT_THAT(error_of([&] { job->server(0).send(kWorker0, one(make_frame(Kind::kReply, 1))); }),
              first_cause);
  EXPECT_THAT(error_of([&] { job->worker(0).exchange("init", "", 1s); }), first_cause);
  std::this_thread::sleep_for(50ms);
  for (auto& [node, ear] : ears) EXPECT_EQ(ear.failures(1).size(), 1u) << to_string(node);
  for (const Node node : {kWorker0, kWorker1}) job->worker(node.rank).detach();
  for (const Node node : {kServer0, kServer1}) job->server(node.rank).detach();
}

class ThrowingSink final : public Sink {
 public:
  void on_frames(Node, std::vector<Frame>) override { throw std::runtime_error("a bug in the sink"); }
  void on_failure(const std::string&) override {}
  void on_goodbye(Node) override {}
};

TEST_P(TransportConformance, ASinkThatThrowsFailsTheJobNamingItsNode) {
  const auto job = start(1, 1);
  Ear ear;
  ThrowingSink sink;
  job->worker(0).attach(ear);
  job->server(0).attach(sink);
  job->worker(0).send(kServer0, one(make_frame(Kind::kPush, 1)));
  EXPECT_THAT(ear.failures(1), ElementsAre("server 0: a bug in the sink"));
  job->server(0).detach();
  job->worker(0).detach();
}

TEST_P(TransportConformance, FailEndsAWaitingExchange) {
  const auto job = start(2, 0);
  auto waiting = std::async(
      std::launch::async, [&] { return error_of([&] { job->worker(0).exchange("init", "", kPatience); }); });
  std::this_thread::sleep_for(30ms);
  job->worker(1).fail("out of memory");
  EXPECT_THAT(waiting.get(), HasSubstr("TransportError: out of memory"));
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

std::unique_ptr<Job> start_inproc(std::uint32_t workers, std::uint32_t servers) {
  return std::make_unique<InprocJob>(workers, servers);
}
std::unique_ptr<Job> start_tcp(std::uint32_t workers, std::uint32_t servers) {
  return std::make_unique<ZmqJob>(zmq_options("tcp://127.0.0.1:*"), workers, servers);
}
std::unique_ptr<Job> start_tcp6(std::uint32_t workers, std::uint32_t servers) {
  return std::make_unique<ZmqJob>(zmq_options("tcp://[::1]:0"), workers, servers);
}
std::unique_ptr<Job> start_streams(std::uint32_t workers, std::uint32_t servers) {
  return std::make_unique<ZmqJob>(zmq_options("tcp://localhost:*", 3), workers, servers);
}
std::unique_ptr<Job> start_ipc(std::uint32_t workers, std::uint32_t servers) {
  static std::atomic<int> count{0};
  const std::string path =
      ::testing::TempDir() + "gradwire-" + std::to_string(getpid()) + "-" + std::to_string(count++);
  return std::make_unique<ZmqJob>(zmq_options("ipc://" + path), workers, servers);
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportConformance,
                         ::testing::Values(Transport{"Inproc", start_inproc}, Transport{"ZmqTcp", start_tcp},
                                           Transport{"ZmqTcp6", start_tcp6}, Transport{"ZmqIpc", start_ipc},
                                           Transport{"ZmqStreams", start_streams, false}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gradwire::transport
