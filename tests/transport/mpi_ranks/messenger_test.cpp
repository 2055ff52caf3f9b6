// What every Messenger must do (transport_conformance_test.cpp), between processes over MPI. One rank is
// enough for MpiRanks; MpiManyRanks wants two or more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <optional>
#include <thread>

#include "tests/transport/frames.h"
#include "tests/transport/mpi_ranks/ranks.h"
#include "transport/mpi/mpi_packet.h"

namespace gradwire::transport {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using namespace std::chrono_literals;

constexpr Node worker(std::uint32_t rank) { return {Role::kWorker, rank}; }
constexpr Node server(std::uint32_t rank) { return {Role::kServer, rank}; }

TEST(MpiRanks, NodesKnowThemselvesAndTheWorld) {
  Rank rank;
  EXPECT_EQ(rank.worker().self().role, Role::kWorker);
  EXPECT_EQ(rank.server().self(), server(rank.rank()));
  const World world = rank.worker().world();
  EXPECT_EQ(world.servers, world.workers);
  EXPECT_LT(rank.rank(), world.workers);
  EXPECT_EQ(rank.server().world(), world);
  const std::string epoch = std::to_string(world.epoch);
  EXPECT_NE(world.epoch, 0u);
  EXPECT_THAT(rank.worker().exchange("epoch", epoch, kPatience), Each(epoch));
}

TEST(MpiRanks, FramesArriveWithHeaderPayloadSenderAndEpoch) {
  Rank rank;
  rank.listen();
  for (const std::size_t size : {std::size_t{1000}, kInlinePayloadBytes + 1}) {
    Frame frame = make_frame(Kind::kPush, 7, size);
    frame.header.step = 3;
    frame.header.priority = -5;
    frame.header.codec_parameters = {1, 2, 3, 4};
    FrameHeader expected = frame.header;
    expected.sender = worker(rank.previous());
    expected.epoch = rank.worker().world().epoch;
    rank.worker().send(server(rank.next()), one(std::move(frame)));
    const auto heard = rank.server_ear.take_frames(1);
    ASSERT_THAT(heard, SizeIs(1));
    EXPECT_EQ(heard[0].from, worker(rank.previous()));
    EXPECT_EQ(heard[0].frames[0].header, expected);
    EXPECT_TRUE(has_payload_of(heard[0].frames[0], 7, size));
    rank.meet();
  }
}

TEST(MpiRanks, OrderIsKeptPerPeerPairWhateverTheSize) {
  constexpr std::uint64_t kCount = 600;
  const auto size_of = [](std::uint64_t step) { return step % 7 == 3 ? 70'000 : step % 5 * 1500; };
  Rank rank;
  rank.listen();
  for (std::uint64_t step = 0; step < kCount; ++step) {
    for (std::uint32_t to = 0; to < rank.size(); ++to) {
      Frame frame = make_frame(Kind::kPush, step % 5, size_of(step));
      frame.header.step = step;
      rank.worker().send(server(to), one(std::move(frame)));
    }
  }
  std::map<Node, std::uint64_t> next;
  for (const auto& heard : rank.server_ear.take_frames(kCount * rank.size())) {
    for (const Frame& frame : heard.frames) {
      ASSERT_EQ(frame.header.step, next[heard.from]++);
      ASSERT_TRUE(has_payload_of(frame, frame.header.step % 5, size_of(frame.header.step)));
    }
  }
  for (std::uint32_t from = 0; from < rank.size(); ++from) EXPECT_EQ(next[worker(from)], kCount);
}

TEST(MpiRanks, FusedFramesArriveTogether) {
  const auto size_of = [](std::uint64_t key) { return key % 10 == 0 ? 20'000 + key : key * 13 % 900; };
  Rank rank;
  rank.listen();
  std::vector<Frame> frames;
  for (std::uint64_t key = 0; key < 100; ++key) frames.push_back(make_frame(Kind::kPush, key, size_of(key)));
  rank.worker().send(server(rank.next()), std::move(frames));
  const auto heard = rank.server_ear.take_frames(100);
  ASSERT_THAT(heard, SizeIs(1));
  for (std::uint64_t key = 0; key < 100; ++key) {
    EXPECT_EQ(heard[0].frames[key].header.key, key);
    EXPECT_TRUE(has_payload_of(heard[0].frames[key], key, size_of(key))) << key;
  }
}

TEST(MpiRanks, RepliesReachTheWorkerThatAsked) {
  Rank rank;
  rank.listen();
  rank.worker().send(server(0), one(make_frame(Kind::kPull, rank.rank())));
  if (rank.rank() == 0) {
    for (const auto& heard : rank.server_ear.take_frames(rank.size())) {
      rank.server().send(heard.from, one(make_frame(Kind::kValue, heard.frames[0].header.key + 10, 6000)));
    }
  }
  const auto heard = rank.worker_ear.take_frames(1);
  ASSERT_THAT(heard, SizeIs(1));
  EXPECT_EQ(heard[0].from, server(0));
  EXPECT_TRUE(has_payload_of(heard[0].frames[0], rank.rank() + 10, 6000));
}

TEST(MpiRanks, EmptyAndLargePayloadsArriveWholeAndAligned) {
  Rank rank;
  rank.listen();
  constexpr std::size_t kLarge = std::size_t{8} << 20;
  const std::vector<std::size_t> sizes = {
      0,      1, 511,       kInlinePayloadBytes - 1, kInlinePayloadBytes, kInlinePayloadBytes + 1, 65'536,
      kLarge, 0, kLarge + 3};
  for (const std::size_t size : sizes)
    rank.worker().send(server(rank.next()), one(make_frame(Kind::kPush, 4, size)));
  const auto heard = rank.server_ear.take_frames(sizes.size());
  ASSERT_THAT(heard, SizeIs(sizes.size()));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Buffer& payload = heard[i].frames[0].payload;
    EXPECT_TRUE(has_payload_of(heard[i].frames[0], 4, sizes[i])) << sizes[i];
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(payload.bytes().data()) % 8, 0u);
  }
}

TEST(MpiRanks, PayloadsBeyondTheLargestMessageGoInPieces) {
  MpiOptions options = mpi_options();
  options.largest_message_bytes = 1000;
  Rank rank(options);
  rank.listen();
  const std::vector<std::size_t> sizes = {100'000, 5000, 4097, 99'999, 100'001};
  std::vector<Frame> frames;
  for (const std::size_t size : sizes) frames.push_back(make_frame(Kind::kPush, size, size));
  rank.worker().send(server(rank.next()), std::move(frames));
  const auto heard = rank.server_ear.take_frames(sizes.size());
  ASSERT_THAT(heard, SizeIs(1));
  for (std::size_t i = 0; i < sizes.size(); ++i)
    EXPECT_TRUE(has_payload_of(heard[0].frames[i], sizes[i], sizes[i])) << sizes[i];
}

// A lent payload must come back: the engine's credit waits for that.
TEST(MpiRanks, BorrowedPayloadsAreReleasedExactlyOnce) {
  std::vector<std::byte> bytes(100'000, std::byte{42});
  std::atomic<int> released{0};
  {
    Rank rank;
    rank.listen();
    Frame to_next = make_frame(Kind::kPush, 1);
    to_next.payload = Buffer::borrow(bytes, [&] { ++released; });
    Frame held_back = make_frame(Kind::kPush, 1);
    held_back.payload = to_next.payload.share();
    rank.worker().send(server(rank.next()), one(std::move(to_next)));
    const auto heard = rank.server_ear.take_frames(1);
    ASSERT_THAT(heard, SizeIs(1));
    EXPECT_EQ(heard[0].frames[0].payload.bytes().back(), std::byte{42});
    EXPECT_EQ(released, 0) << "a share still lives";
    held_back = Frame();
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (released == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(released, 1);
    rank.meet();
  }
  EXPECT_EQ(released, 1);
}

TEST(MpiRanks, AttachHandsOverWhatCameEarlier) {
  Rank rank;
  for (std::uint64_t step = 0; step < 10; ++step) {
    Frame frame = make_frame(Kind::kPush, 1, 10);
    frame.header.step = step;
    rank.worker().send(server(rank.next()), one(std::move(frame)));
  }
  rank.meet();
  std::this_thread::sleep_for(20ms);
  rank.server().attach(rank.server_ear);
  const auto heard = rank.server_ear.take_frames(10);
  ASSERT_THAT(heard, SizeIs(10));
  for (std::uint64_t step = 0; step < 10; ++step) EXPECT_EQ(heard[step].frames[0].header.step, step);
  rank.server().detach();
  rank.meet();

  rank.worker().send(server(rank.next()), one(make_frame(Kind::kPush, 2)));
  std::this_thread::sleep_for(20ms);
  Ear second;
  rank.server().attach(second);
  EXPECT_EQ(second.take_frames(1).at(0).frames[0].header.key, 2u);
  rank.server().detach();
  rank.meet();
}

TEST(MpiRanks, CountersAreTheBytesOfBothSides) {
  Rank rank;
  rank.listen();
  std::uint64_t bytes = 0;
  for (const std::size_t size : {0, 17, 5000, 200'000}) {
    rank.worker().send(server(rank.next()), one(make_frame(Kind::kPush, 3, size)));
    bytes += kHeaderBytes + size;
  }
  rank.server_ear.take_frames(4);
  const Counters sent = counters_with(rank.worker(), server(rank.next()));
  const Counters received = counters_with(rank.server(), worker(rank.previous()));
  EXPECT_EQ(sent.bytes_sent, bytes);
  EXPECT_EQ(sent.frames_sent, 4u);
  EXPECT_EQ(received.bytes_received, bytes);
  EXPECT_EQ(received.frames_received, 4u);
  EXPECT_EQ(sent.bytes_received, 0u);
  rank.meet();
}

TEST(MpiRanks, PayloadsHaveChecksumsAsAskedFor) {
  using Policy = PayloadChecksum;
  struct Case {
    Policy policy;
    std::string host;
    bool sealed_by_sender, arrives_sealed;
  };
  MpiOptions options = mpi_options();
  std::uint32_t self = 0;
  {
    Rank rank(options);
    self = rank.rank();
    if (rank.size() == 1) return;  // nothing leaves the process
  }
  const std::string elsewhere = "host" + std::to_string(self);
  for (const auto& [policy, host, sealed_by_sender, arrives_sealed] :
       {Case{Policy::kAuto, "", false, false}, Case{Policy::kAuto, "", true, true},
        Case{Policy::kAuto, elsewhere, false, true}, Case{Policy::kAlways, "", false, true},
        Case{Policy::kOff, elsewhere, true, false}}) {
    options.checksum = policy;
    options.host = host;
    Rank rank(options);
    rank.listen();
    EXPECT_EQ(rank.worker().seals_payloads(), arrives_sealed && !sealed_by_sender);
    std::vector<Frame> frames;
    for (const std::size_t size : {std::size_t{100}, kInlinePayloadBytes + 1}) {
      frames.push_back(make_frame(Kind::kPush, 1, size));
      if (sealed_by_sender) frames.back().payload.seal();
    }
    rank.worker().send(server(rank.next()), std::move(frames));
    for (const auto& heard : rank.server_ear.take_frames(2)) {
      for (const Frame& frame : heard.frames) {
        EXPECT_EQ(frame.payload.checksum().has_value(), arrives_sealed);
        EXPECT_TRUE(frame.payload.is_intact());
      }
    }
  }
}

TEST(MpiRanks, SendsThatCannotBeAreInvalidArguments) {
  Rank rank;
  const std::uint32_t size = rank.size();
  Messenger& messenger = rank.worker();
  EXPECT_THROW(messenger.send(server(size), one(make_frame(Kind::kPush, 1))), std::invalid_argument);
  EXPECT_THROW(messenger.send(worker(0), one(make_frame(Kind::kPush, 1))), std::invalid_argument);
  EXPECT_THROW(messenger.send({Role::kScheduler, 0}, one(make_frame(Kind::kPush, 1))), std::invalid_argument);
  EXPECT_THROW(messenger.send(server(0), one(make_frame(Kind::kGoodbye, 1))), std::invalid_argument);
  EXPECT_THROW(rank.server().send(worker(size), one(make_frame(Kind::kReply, 1))), std::invalid_argument);
  EXPECT_THROW(rank.server().exchange("init", "", 1s), std::invalid_argument);
  EXPECT_THROW(messenger.exchange(std::string_view("a\0b", 3), "", 1s), std::invalid_argument);
}

TEST(MpiRanks, ExchangesGiveEveryBlobInRankOrder) {
  Rank rank;
  const auto blob_of = [](std::uint32_t of, int i) {
    return "r" + std::to_string(of) + std::string(1, '\0') + std::to_string(i);
  };
  for (int i = 0; i < 20; ++i) {
    const auto blobs = rank.worker().exchange("round", blob_of(rank.rank(), i), kPatience);
    ASSERT_THAT(blobs, SizeIs(rank.size()));
    for (std::uint32_t other = 0; other < rank.size(); ++other) ASSERT_EQ(blobs[other], blob_of(other, i));
  }
  const auto large_of = [](std::uint32_t of) { return std::string(3'000'000, static_cast<char>('a' + of)); };
  const auto blobs = rank.worker().exchange("large", large_of(rank.rank()), kPatience);
  for (std::uint32_t other = 0; other < rank.size(); ++other) EXPECT_EQ(blobs.at(other), large_of(other));
  EXPECT_THAT(rank.worker().exchange("empty", "", kPatience), AllOf(SizeIs(rank.size()), Each("")));
}

TEST(MpiRanks, ManyThreadsMaySendAtOnce) {
  constexpr std::uint64_t kCount = 300;
  constexpr std::uint64_t kThreads = 4;
  Rank rank;
  rank.listen();
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::uint64_t i = 0; i < kCount; ++i) {
          const auto to = static_cast<std::uint32_t>(i % rank.size());
          rank.worker().send(server(to), one(make_frame(Kind::kPush, thread, i % 3 * 3000)));
        }
      });
    }
  }
  rank.meet();
  std::uint64_t expected = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) expected += i % rank.size() == rank.rank() ? 1 : 0;
  expected *= kThreads * rank.size();
  std::size_t frames = 0;
  for (const auto& heard : rank.server_ear.take_frames(expected)) frames += heard.frames.size();
  EXPECT_EQ(frames, expected);
}

TEST(MpiRanks, GoodbyeComesAfterTheLastFrameAndEndsSending) {
  constexpr std::uint64_t kCount = 100;
  Rank rank;
  rank.listen();
  if (rank.is_last()) {
    for (std::uint64_t step = 0; step < kCount; ++step)
      rank.worker().send(server(0), one(make_frame(Kind::kPush, step, 20'000)));
    rank.worker().leave(5s);
    rank.worker().leave(5s);  // idempotent
    EXPECT_THAT(error_of([&] { rank.worker().send(server(0), one(make_frame(Kind::kPush, 1))); }),
                HasSubstr(to_string(rank.worker().self()) + " has left the job"));
    EXPECT_THAT(error_of([&] { rank.worker().exchange("init", "", 1s); }), HasSubstr(" has left the job"));
  } else {
    EXPECT_TRUE(rank.worker_ear.hears_goodbye_of(worker(rank.size() - 1)));
  }
  EXPECT_TRUE(rank.server_ear.hears_goodbye_of(worker(rank.size() - 1)));
  if (rank.rank() == 0) {
    std::size_t frames = 0;
    for (const auto& heard : rank.server_ear.take_frames(kCount)) frames += heard.frames.size();
    EXPECT_EQ(frames, kCount) << "leave() flushes";
  }
  EXPECT_NO_THROW(rank.server().send(worker(rank.size() - 1), one(make_frame(Kind::kReply, 1))))
      << "dropped: it has left";
  EXPECT_THAT(rank.server_ear.failures(0), IsEmpty());
}

TEST(MpiRanks, DestroyingTheMessengersIsLeaving) {
  std::optional<Rank> rank(std::in_place);
  Ear& ear = rank->server_ear;
  rank->server().attach(ear);
  const std::uint32_t size = rank->size();
  rank->worker().send(server(rank->next()), one(make_frame(Kind::kPush, 9, 5000)));
  rank->pair().worker.reset();
  const auto heard = ear.take_frames(1);
  ASSERT_THAT(heard, SizeIs(1));
  EXPECT_EQ(heard[0].frames[0].header.key, 9u);
  for (std::uint32_t of = 0; of < size; ++of) EXPECT_TRUE(ear.hears_goodbye_of(worker(of)));
  EXPECT_THAT(ear.failures(0), IsEmpty());
}

TEST(MpiRanks, FailReachesEveryNodeOnceAndEndsSending) {
  Rank rank;
  rank.listen();
  rank.meet_unless_failed();
  if (rank.is_last()) rank.worker().fail("the last worker: the disk is full");
  for (Ear* ear : {&rank.worker_ear, &rank.server_ear})
    EXPECT_THAT(ear->failures(1), ElementsAre("the last worker: the disk is full"));
  rank.worker().fail("a second cause");
  rank.server().fail("a third cause");
  const auto first_cause = HasSubstr("TransportError: the last worker: the disk is full");
  EXPECT_THAT(error_of([&] { rank.worker().send(server(0), one(make_frame(Kind::kPush, 1))); }), first_cause);
  EXPECT_THAT(error_of([&] { rank.server().send(worker(0), one(make_frame(Kind::kReply, 1))); }),
              first_cause);
  EXPECT_THAT(error_of([&] { rank.worker().exchange("init", "", 1s); }), first_cause);
  std::this_thread::sleep_for(50ms);
  for (Ear* ear : {&rank.worker_ear, &rank.server_ear}) EXPECT_THAT(ear->failures(1), SizeIs(1));
}

class ThrowingSink final : public Sink {
 public:
  void on_frames(Node, std::vector<Frame>) override { throw std::runtime_error("a bug in the sink"); }
  void on_failure(const std::string&) override {}
  void on_goodbye(Node, const std::string&) override {}
};

TEST(MpiRanks, ASinkThatThrowsFailsTheJobNamingItsNode) {
  ThrowingSink sink;
  Rank rank;
  rank.worker().attach(rank.worker_ear);
  rank.server().attach(sink);
  try {
    rank.worker().send(server(0), one(make_frame(Kind::kPush, 1)));
  } catch (const TransportError&) {  // another rank was quicker
  }
  EXPECT_THAT(rank.worker_ear.failures(1), ElementsAre("server 0: a bug in the sink"));
}

// What is lent to a job that fails comes back with leave(), sent or not.
TEST(MpiRanks, AfterLeaveAFailedJobHasReleasedWhatWasBeingSent) {
  std::vector<std::byte> bytes(std::size_t{4} << 20);
  std::atomic<int> released{0};
  constexpr int kCount = 8;
  {
    Rank rank;
    rank.listen();
    rank.meet_unless_failed();
    for (int i = 0; i < kCount; ++i) {
      Frame frame = make_frame(Kind::kPush, 1);
      frame.payload = Buffer::borrow(bytes, [&] { ++released; });
      try {
        rank.worker().send(server(rank.next()), one(std::move(frame)));
      } catch (const TransportError&) {  // another rank was quicker
      }
      if (i == 3 && rank.is_last()) rank.worker().fail("enough");
    }
    EXPECT_THAT(rank.worker_ear.failures(1), ElementsAre("enough"));
    rank.worker().leave(kPatience);
    EXPECT_EQ(released, kCount);
  }
}

TEST(MpiManyRanks, ALateExchangeNamesTheMissingRanksAndFailsTheJob) {
  Rank rank;
  const std::string late = to_string(worker(rank.size() - 1));
  const auto names_it =
      AllOf(HasSubstr("exchange 0 ('init')"), HasSubstr(late + " did not come within 300 ms"));
  if (!rank.is_last()) {
    EXPECT_THAT(error_of([&] { rank.worker().exchange("init", "x", 300ms); }), names_it);
  } else {
    std::this_thread::sleep_for(1500ms);
    EXPECT_THAT(error_of([&] { rank.worker().exchange("init", "x", kPatience); }),
                AllOf(StartsWith("TransportError: worker "), HasSubstr(" gave up: "), names_it));
  }
}

TEST(MpiManyRanks, ExchangesOfDifferentNamesFailTheJobNamingBoth) {
  Rank rank;
  rank.listen();
  const std::string name = rank.rank() == 1 ? "barrier" : "init";
  EXPECT_THAT(error_of([&] { rank.worker().exchange(name, "", kPatience); }),
              AllOf(StartsWith("TransportError: exchange 0"), HasSubstr("is in 'init'"),
                    HasSubstr("worker 1 is in 'barrier'")));
  EXPECT_THAT(rank.server_ear.failures(1), ElementsAre(HasSubstr("worker 1 is in 'barrier'")));
}

TEST(MpiManyRanks, AWorkerThatLeavesEndsTheExchangeOfTheOthersAtOnce) {
  Rank rank;
  rank.meet();
  if (rank.is_last()) {
    std::this_thread::sleep_for(50ms);
    rank.worker().leave(5s);
  } else {
    EXPECT_THAT(error_of([&] { rank.worker().exchange("init", "", kPatience); }),
                AllOf(StartsWith("TransportError"),
                      HasSubstr(to_string(worker(rank.size() - 1)) + " has left the job")));
  }
}

TEST(MpiManyRanks, FailEndsAWaitingExchange) {
  Rank rank;
  rank.meet_unless_failed();
  if (rank.is_last()) {
    std::this_thread::sleep_for(30ms);
    rank.worker().fail("out of memory");
  } else {
    EXPECT_THAT(error_of([&] { rank.worker().exchange("init", "", kPatience); }),
                HasSubstr("TransportError: out of memory"));
  }
}

TEST(MpiManyRanks, WhoLeavesEarlyWaitsForTheOthersOnlyAtItsEnd) {
  std::optional<Rank> rank(std::in_place);
  rank->listen();
  const auto before = std::chrono::steady_clock::now();
  if (rank->is_last()) {
    rank->worker().leave(600s);  // the others are here and hear it, or the test would not end in time
    rank->server().leave(600s);
  } else {
    EXPECT_TRUE(rank->worker_ear.hears_goodbye_of(worker(rank->size() - 1)));
    EXPECT_TRUE(rank->worker_ear.hears_goodbye_of(server(rank->size() - 1)));
    std::this_thread::sleep_for(1s);
    EXPECT_THAT(rank->worker_ear.failures(0), IsEmpty());
  }
  rank.reset();
  EXPECT_GT(std::chrono::steady_clock::now() - before, 900ms);
}

TEST(MpiManyRanks, HeartbeatsComeThroughWhatIsSent) {
  constexpr int kCount = 4;
  MpiOptions options = mpi_options();
  options.liveness_timeout = 1s;
  const std::vector<std::byte> bytes(std::size_t{8} << 20);
  Rank rank(options);
  rank.listen();
  const auto end = std::chrono::steady_clock::now() + 2500ms;
  const auto goes_on = [&] {
    const std::string more = std::chrono::steady_clock::now() < end ? "more" : "";
    return rank.worker().exchange("goes on", more, kPatience).front() == "more";
  };
  while (goes_on()) {
    for (int i = 0; i < kCount; ++i) {
      Frame frame = make_frame(Kind::kPush, 1);
      frame.payload = Buffer::borrow(bytes);
      rank.worker().send(server(rank.next()), one(std::move(frame)));
    }
    rank.server_ear.take_frames(kCount);
  }
  EXPECT_THAT(rank.server_ear.failures(0), IsEmpty());
}

TEST(MpiManyRanks, RanksThatDifferInWhatTheyAskForAllHearWhich) {
  MpiOptions options = mpi_options();
  std::uint32_t self = 0;
  {
    Rank rank;
    self = rank.rank();
  }
  if (self == 1) options.largest_message_bytes = 4096;
  EXPECT_THAT(error_of([&] { connect_mpi(options); }),
              AllOf(HasSubstr("TransportError: mpi: worker 0 ("),
                    HasSubstr("has largest_message_bytes=1073741824 and worker 1 ("), HasSubstr(") 4096")));
  options = mpi_options();
  const auto connect = [&] {
    if (self == 1) {
      connect_mpi_native(options);
    } else {
      connect_mpi(options);
    }
  };
  EXPECT_THAT(error_of(connect), AllOf(HasSubstr("called connect_mpi and worker 1 ("),
                                       HasSubstr(") connect_mpi_native; every rank must")));
}

TEST(MpiRanks, OptionsThatCannotBeAreInvalidArguments) {
  MpiOptions options = mpi_options();
  options.largest_message_bytes = 0;
  EXPECT_THROW(connect_mpi(options), std::invalid_argument);
  options = mpi_options();
  options.library = "";
  EXPECT_THROW(connect_mpi(options), std::invalid_argument);
  options = mpi_options();
  options.liveness_timeout = 0ms;
  EXPECT_THROW(connect_mpi(options), std::invalid_argument);
}

}  // namespace
}  // namespace gradwire::transport
