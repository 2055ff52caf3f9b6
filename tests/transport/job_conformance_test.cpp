// How ranks meet, leave and fail, whatever carries the frames: exchanges, goodbyes, failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <thread>

#include "tests/transport/ear.h"
#include "tests/transport/frames.h"
#include "tests/transport/messenger_jobs.h"

namespace gradwire::transport {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

using JobConformance = TransportConformance;

TEST_P(JobConformance, ExchangesGiveEveryBlobInRankOrder) {
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

TEST_P(JobConformance, ThreadsOfAWorkerMayExchangeAtOnce) {
  constexpr int kThreads = 4, kCount = 100;
  const auto job = start(2, 0);
  std::vector<std::future<std::string>> threads;
  for (const std::uint32_t rank : {0U, 1U}) {
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.push_back(std::async(std::launch::async, [&job, rank] {
        return error_of([&] {
          for (int i = 0; i < kCount; ++i) job->worker(rank).exchange("barrier", "", kPatience);
        });
      }));
    }
  }
  for (auto& thread : threads) EXPECT_EQ(thread.get(), "no error");
}

TEST_P(JobConformance, ALateExchangeNamesTheMissingRanksAndFailsTheJob) {
  const auto job = start(4, 0);
  const auto come = [&](std::uint32_t rank, milliseconds timeout) {
    return std::async(std::launch::async, [&job, rank, timeout] {
      return error_of([&] { job->worker(rank).exchange("init", std::to_string(rank), timeout); });
    });
  };
  auto third = come(2, kPatience);
  auto first = come(0, 300ms);
  const std::string names_both = "exchange 0 ('init'): worker 1 and worker 3 did not come within 300 ms";
  EXPECT_EQ(first.get(), "TimeoutError: " + names_both);
  const std::string cause = "TransportError: worker 0 gave up: " + names_both;
  EXPECT_EQ(third.get(), cause);
  auto second = come(1, kPatience);
  auto fourth = come(3, kPatience);
  EXPECT_EQ(second.get(), cause) << "it went past where others had given up";
  EXPECT_EQ(fourth.get(), cause);
}

TEST_P(JobConformance, ExchangesOfDifferentNamesFailTheJobNamingBoth) {
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

TEST_P(JobConformance, AWorkerThatLeavesEndsTheExchangeOfTheOthersAtOnce) {
  const auto job = start(3, 0);
  auto waiting = std::async(
      std::launch::async, [&] { return error_of([&] { job->worker(0).exchange("init", "", kPatience); }); });
  std::this_thread::sleep_for(50ms);
  job->worker(2).leave(2s);
  const auto names_it = AllOf(HasSubstr("TransportError"), HasSubstr("worker 2 has left the job"));
  EXPECT_THAT(waiting.get(), names_it);
  EXPECT_THAT(error_of([&] { job->worker(1).exchange("init", "", kPatience); }), names_it);
}

TEST_P(JobConformance, AWorkerThatLeavesEndsItsOwnExchange) {
  const auto job = start(2, 0);
  auto waiting = std::async(
      std::launch::async, [&] { return error_of([&] { job->worker(0).exchange("init", "", kPatience); }); });
  std::this_thread::sleep_for(50ms);
  job->worker(0).leave(2s);
  EXPECT_EQ(waiting.get(), "TransportError: worker 0 has left the job");
}

TEST_P(JobConformance, GoodbyeComesAfterTheLastFrameAndEndsSending) {
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

TEST_P(JobConformance, WhoWaitsForAWorkerThatAnErrorHasEndedHearsOfIt) {
  const auto job = start(3, 1);
  Ear server_ear;
  Ear worker_ear;
  job->server(0).attach(server_ear);
  job->worker(0).attach(worker_ear);
  auto waiting = std::async(
      std::launch::async, [&] { return error_of([&] { job->worker(1).exchange("init", "", kPatience); }); });
  const Node failed{Role::kWorker, 2};
  job->worker(2).note_error("ValueError: no\nsuch " + std::string(1000, 'x'));
  job->worker(2).leave(5s);
  EXPECT_THAT(server_ear.goodbyes(1), ElementsAre(failed));
  EXPECT_THAT(worker_ear.goodbyes(1), ElementsAre(failed));
  const auto names_it = HasSubstr("ValueError: no");
  EXPECT_THAT(server_ear.errors(), ElementsAre(names_it));
  EXPECT_THAT(worker_ear.errors(), ElementsAre(names_it));
  EXPECT_THAT(waiting.get(), AllOf(HasSubstr("exchange 0 ('init'): worker 2 failed: ValueError: no"),
                                   HasSubstr("see its traceback")));
  job->worker(0).leave(5s);
  EXPECT_THAT(server_ear.goodbyes(2), ElementsAre(failed, kWorker0));
  EXPECT_EQ(server_ear.errors().size(), 1u) << "it came to its end";
  job->server(0).detach();
  job->worker(0).detach();
}

TEST_P(JobConformance, DestroyingAMessengerIsLeaving) {
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

TEST_P(JobConformance, FailReachesEveryRankOnceAndEndsSending) {
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
  void on_goodbye(Node, const std::string&) override {}
};

TEST_P(JobConformance, ASinkThatThrowsFailsTheJobNamingItsNode) {
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

TEST_P(JobConformance, FailEndsAWaitingExchange) {
  const auto job = start(2, 0);
  auto waiting = std::async(
      std::launch::async, [&] { return error_of([&] { job->worker(0).exchange("init", "", kPatience); }); });
  std::this_thread::sleep_for(30ms);
  job->worker(1).fail("out of memory");
  EXPECT_THAT(waiting.get(), HasSubstr("TransportError: out of memory"));
}
INSTANTIATE_TEST_SUITE_P(Transports, JobConformance, ::testing::ValuesIn(kTransports), transport_name);

}  // namespace
}  // namespace gradwire::transport
