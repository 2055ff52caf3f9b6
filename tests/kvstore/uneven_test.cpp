// Workers with different numbers of rounds: who has none left joins, and the others' sums go on without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <map>
#include <numeric>

#include "kvstore/aggregate/aggregator.h"
#include "kvstore/rows/sparse_rows.h"
#include "tests/kvstore/forgetful_line.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using transport::Buffer;
using transport::Frame;
using transport::Kind;
using Answers = std::vector<Answer>;

// ---- what a server makes of it -------------------------------------------------------------------------

Buffer buffer_of(std::string_view bytes) {
  Buffer buffer = Buffer::allocate(bytes.size());
  std::memcpy(buffer.bytes().data(), bytes.data(), bytes.size());
  return buffer;
}

Answers handle(Aggregator& aggregator, std::uint32_t worker, Frame frame) {
  Answers answers;
  aggregator.handle(worker, std::move(frame), answers);
  return answers;
}

Answers push(Aggregator& aggregator, std::uint32_t worker, std::uint64_t step, float value) {
  Frame frame;
  frame.header.kind = Kind::kPush;
  frame.header.sender = {transport::Role::kWorker, worker};
  frame.header.step = step;
  frame.header.count = 1;
  frame.payload = buffer_of({reinterpret_cast<const char*>(&value), sizeof value});
  return handle(aggregator, worker, std::move(frame));
}

Answers join(Aggregator& aggregator, std::uint32_t worker, std::uint64_t number = 1) {
  Frame frame;
  frame.header.kind = Kind::kCommand;
  frame.header.key = number;
  frame.payload = buffer_of("join");
  return handle(aggregator, worker, std::move(frame));
}

float value_of(const Frame& frame) {
  float value = 0;
  std::memcpy(&value, frame.payload.bytes().data(), sizeof value);
  return value;
}

std::vector<std::uint32_t> workers_of(const Answers& answers) {
  std::vector<std::uint32_t> workers;
  for (const auto& answer : answers) workers.push_back(answer.worker);
  return workers;
}

TEST(Uneven, AJoinCompletesRoundsThatWaitedForItAlone) {
  Aggregator aggregator(3);
  push(aggregator, 0, 0, 1);
  push(aggregator, 2, 0, 4);
  push(aggregator, 2, 1, 8);
  const auto answers = join(aggregator, 1);
  ASSERT_THAT(workers_of(answers), ElementsAre(1, 0, 2));
  EXPECT_EQ(answers[0].frame.header.kind, Kind::kAck);
  EXPECT_EQ(answers[0].frame.header.step, 0U) << "the first to join";
  EXPECT_EQ(value_of(answers[1].frame), 5);
  EXPECT_EQ(absent_of(answers[1].frame.header.flags), 1U);
  const auto next = push(aggregator, 0, 1, 2);
  ASSERT_THAT(workers_of(next), ElementsAre(0, 2));
  EXPECT_EQ(value_of(next[0].frame), 10);
}

TEST(Uneven, WhenAllHaveJoinedAllAreAwaitedAgain) {
  Aggregator aggregator(2);
  EXPECT_EQ(join(aggregator, 1).at(0).frame.header.step, 0U);
  EXPECT_EQ(value_of(push(aggregator, 0, 0, 3).at(0).frame), 3);
  EXPECT_EQ(join(aggregator, 0).at(0).frame.header.step, 1U);
  EXPECT_TRUE(push(aggregator, 0, 1, 1).empty());
  const auto answers = push(aggregator, 1, 1, 2);
  ASSERT_THAT(workers_of(answers), ElementsAre(0, 1));
  EXPECT_EQ(value_of(answers[0].frame), 3);
  EXPECT_EQ(absent_of(answers[0].frame.header.flags), 0U);
}

TEST(Uneven, WhoJoinsHearsHowManyHadBefore) {
  Aggregator aggregator(2);
  push(aggregator, 0, 0, 1);
  const auto first = join(aggregator, 1);
  ASSERT_EQ(first.size(), 2U);  // and the round that waited for it
  EXPECT_EQ(first[0].frame.header.step, 0U);
  EXPECT_EQ(join(aggregator, 0).at(0).frame.header.step, 1U);
  EXPECT_TRUE(push(aggregator, 0, 1, 1).empty()) << "worker 1 is awaited";
}

TEST(Uneven, WhoHasJoinedMayAskForAnOldAnswerAndPushNothingNew) {
  Aggregator aggregator(2);
  push(aggregator, 0, 0, 1);
  push(aggregator, 1, 0, 2);
  join(aggregator, 1);
  EXPECT_EQ(value_of(push(aggregator, 1, 0, 2).at(0).frame), 3) << "a repeated request";
  const auto refused = push(aggregator, 1, 1, 2);
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].frame.header.kind, Kind::kError);
  EXPECT_THAT(payload_text(refused[0].frame), HasSubstr("worker 1 has joined"));
}

TEST(Uneven, WhoIsAskedAfterIsStillThere) {
  Aggregator aggregator(3);
  push(aggregator, 0, 0, 1);
  join(aggregator, 2);
  Frame probe;
  probe.header.kind = Kind::kProbe;
  probe.header.count = 1;
  const auto held = handle(aggregator, 0, std::move(probe));
  ASSERT_EQ(held.at(0).frame.header.kind, Kind::kHeld);
  ASSERT_EQ(held[0].frame.payload.size_bytes(), sizeof(std::uint32_t));
  std::uint32_t awaited = 0;
  std::memcpy(&awaited, held[0].frame.payload.bytes().data(), sizeof awaited);
  EXPECT_EQ(awaited, 1U);
}

TEST(Uneven, ServersCountForWhomRoundsWaited) {
  Aggregator aggregator(2);
  push(aggregator, 1, 1, 1);
  push(aggregator, 0, 1, 1);
  push(aggregator, 0, 1, 1);  // again
  push(aggregator, 1, 0, 1);
  push(aggregator, 0, 0, 1);
  push(aggregator, 0, 2, 1);
  push(aggregator, 1, 2, 1);
  Frame question;
  question.header.kind = Kind::kCommand;
  question.payload = buffer_of("waited for");
  const auto answers = handle(aggregator, 1, std::move(question));
  ASSERT_THAT(workers_of(answers), ElementsAre(1));
  EXPECT_EQ(payload_text(answers[0].frame), "2,1");
}

// ---- whole jobs ----------------------------------------------------------------------------------------

constexpr std::uint32_t kWorkers = 3;
constexpr unsigned kSteps[kWorkers] = {2, 5, 3};  // of each rank, before it joins
constexpr unsigned kMost = 5;
const std::vector<KeySpec> kKeys = {{"small", {300}}, {"several units", {140'001}}};

/// A weight that is told apart from others, and small enough for sums without rounding.
float given(std::uint32_t rank, unsigned step) {
  return static_cast<float>(step + 1) / 4.0F + static_cast<float>(rank);
}

float sum_of_those_who_push(unsigned step) {
  float sum = 0;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
    if (step < kSteps[rank]) sum += given(rank, step);
  }
  return sum;
}

/// Rounds of all keys with one value everywhere; returns what came.
std::vector<std::vector<float>> round(Engine& engine, const std::vector<KeyId>& keys, float value) {
  std::vector<std::vector<float>> values;
  for (std::size_t k = 0; k < keys.size(); ++k) values.emplace_back(kKeys[k].elements(), value);
  std::vector<Ticket> tickets;
  for (std::size_t k = 0; k < keys.size(); ++k)
    tickets.push_back(engine.push_pull(keys[k], values[k], values[k], 0));
  for (const Ticket& ticket : tickets) ticket.wait();
  return values;
}

void expect_all(const std::vector<std::vector<float>>& values, float expected) {
  for (const auto& each : values) EXPECT_EQ(each, std::vector<float>(each.size(), expected));
}

void push_join_and_push_again(Engine& engine) {
  const auto keys = engine.declare(kKeys);
  for (unsigned time = 0; time < 2; ++time) {
    for (unsigned step = 0; step < kSteps[engine.rank()]; ++step)
      expect_all(round(engine, keys, given(engine.rank(), step)), sum_of_those_who_push(step));
    EXPECT_EQ(engine.join(), 1U) << "rank 1 has the most rounds";
    std::vector<float> last(kKeys[0].elements());
    engine.pull(keys[0], last, 0).wait();
    EXPECT_EQ(last, std::vector<float>(last.size(), sum_of_those_who_push(kMost - 1)));
    expect_all(round(engine, keys, 1), 3);
  }
  const auto waited_for = engine.metrics().waited_for();
  EXPECT_EQ(waited_for.size(), kWorkers);
  EXPECT_GT(std::reduce(waited_for.begin(), waited_for.end()), 0U);
  engine.barrier();  // a peer that closes takes what its server has counted with it
}

struct Placement {
  const char* name;
  void (*run)(const JobSize&, const std::function<void(Engine&)>&);
  JobSize size;
};

class UnevenJob : public testing::TestWithParam<Placement> {};

TEST_P(UnevenJob, SumsAreOfThoseThatStillPush) { GetParam().run(GetParam().size, push_join_and_push_again); }

/// What a rank received, by step; after the join from kMost on.
using Received = std::map<unsigned, std::vector<float>>;

Received train(Engine& engine, const std::string& codec, const std::string& reply, unsigned seed,
               unsigned steps) {
  engine.compression().set(spec(codec), reply);
  const auto keys = engine.declare(kKeys);
  Received received;
  const auto take_step = [&](unsigned step) {
    for (std::size_t k = 0; k < keys.size(); ++k) {
      auto values = random_floats(kKeys[k].elements(), 100 * step + seed);
      engine.push_pull(keys[k], values, values, 0).wait();
      received[step].insert(received[step].end(), values.begin(), values.end());
    }
  };
  for (unsigned step = 0; step < steps; ++step) take_step(step);
  engine.join();
  for (unsigned step = kMost; step < kMost + 3; ++step) take_step(step);
  return received;
}

// The bits of an exact reply depend on how many contributed, agreed scales on who was there in the round
// before.
TEST_P(UnevenJob, EveryCodecGivesThoseWhoAreThereOneSum) {
  for (const auto& [codec, reply] :
       std::vector<std::pair<std::string, std::string>>{{"fp16", "fp16"},
                                                        {"2bit:threshold=auto", "exact"},
                                                        {"2bit:threshold=auto", "2bit"},
                                                        {"2bit:threshold=auto,lossless=on", "2bit"},
                                                        {"int8", "int8"},
                                                        {"1bit:threshold=0.25", "exact"},
                                                        {"topk", "topk"},
                                                        {"randomk:ratio=0.1", "randomk"},
                                                        {"terngrad", "terngrad"}}) {
    SCOPED_TRACE(codec + " " + reply);
    std::vector<Received> by_rank(kWorkers);
    GetParam().run(GetParam().size, [&](Engine& engine) {
      const auto rank = engine.rank();
      by_rank[rank] = train(engine, codec, reply, rank, kSteps[rank]);
    });
    for (const std::uint32_t rank : {0U, 2U}) {
      EXPECT_EQ(by_rank[rank].size(), kSteps[rank] + 3);
      for (const auto& [step, values] : by_rank[rank])
        EXPECT_EQ(values, by_rank[1].at(step)) << "rank " << rank << " step " << step;
    }
  }
}

TEST_P(UnevenJob, TheSumOfOneIsThatOfAJobOfOne) {
  for (const auto& [codec, reply] : std::vector<std::pair<std::string, std::string>>{
           {"none", "none"}, {"2bit:threshold=0.25", "exact"}, {"int8", "fp32"}, {"topk", "fp32"}}) {
    SCOPED_TRACE(codec);
    Received alone, left;
    run_job({1, 1}, [&](Engine& engine) { alone = train(engine, codec, reply, 1, kMost); });
    GetParam().run(GetParam().size, [&](Engine& engine) {
      const auto rank = engine.rank();
      auto received = train(engine, codec, reply, rank, kSteps[rank]);
      if (rank == 1) left = std::move(received);
    });
    for (const unsigned step : {3U, 4U}) EXPECT_EQ(left.at(step), alone.at(step));
  }
}

TEST_P(UnevenJob, TwoBitCodesOfFewerWorkersAreTheirSum) {
  GetParam().run(GetParam().size, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    const auto keys = engine.declare(kKeys);
    for (unsigned step = 0; step < kSteps[engine.rank()]; ++step) {
      float live = 0;
      for (const unsigned steps : kSteps) live += step < steps ? 0.5F : 0.0F;
      expect_all(round(engine, keys, 0.5F), live);
    }
    engine.join();
    expect_all(round(engine, keys, 0.5F), 1.5F);
  });
}

TEST_P(UnevenJob, WhatACodecHasNotSentYetComesWithTheNextPush) {
  GetParam().run(GetParam().size, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    const auto keys = engine.declare(kKeys);
    if (engine.rank() == 0) {
      EXPECT_EQ(engine.join(), 2U);
    } else {
      expect_all(round(engine, keys, 0.25F), 0);
      if (engine.rank() == 1) engine.join();
      if (engine.rank() == 2) {
        expect_all(round(engine, keys, 0.125F), 0);
        EXPECT_EQ(engine.join(), 2U);
      }
    }
    // Rank 1 has kept 0.25 and rank 2 0.375.
    expect_all(round(engine, keys, engine.rank() == 0 ? 0.0F : 0.25F), 1.0F);
  });
}

TEST_P(UnevenJob, SlotsGoOn) {
  JobSize size = GetParam().size;
  size.engine.fusion_bytes = 4096;  // the two small ones travel together
  GetParam().run(size, [](Engine& engine) {
    const std::vector<KeySpec> specs = {{"a", {30}}, {"b", {40}}, {"c", {70'000}}};
    const auto keys = engine.declare(specs);
    std::vector<std::vector<float>> values;
    for (const KeySpec& key : specs) values.emplace_back(key.elements());
    const std::vector<ArrayView> spans(values.begin(), values.end());
    engine.slots().bind(keys, spans);
    const auto step_with = [&](float value) {
      for (std::uint32_t slot = 0; slot < 3; ++slot) {
        std::ranges::fill(values[slot], value);
        engine.slots().mark_ready(slot);
      }
      ASSERT_TRUE(engine.slots().drain_for(20s));
    };
    for (unsigned step = 0; step < kSteps[engine.rank()]; ++step) {
      step_with(given(engine.rank(), step));
      expect_all(values, sum_of_those_who_push(step));
    }
    EXPECT_EQ(engine.join(), 1U);
    step_with(1);
    expect_all(values, 3);
  });
}

TEST_P(UnevenJob, TheServersOptimizerStepsOnWhatThereIs) {
  GetParam().run(GetParam().size, [](Engine& engine) {
    const auto keys = engine.declare(kKeys);
    for (std::size_t k = 0; k < keys.size(); ++k)
      engine.init(keys[k], std::vector<float>(kKeys[k].elements(), 0.0F));
    engine.set_optimizer("test rescale_grad=1");
    float weight = 0;
    for (unsigned step = 0; step < kSteps[engine.rank()]; ++step) {
      weight += sum_of_those_who_push(step);
      expect_all(round(engine, keys, given(engine.rank(), step)), weight);
    }
    engine.join();
    float all = 3;
    for (unsigned step = 0; step < kMost; ++step) all += sum_of_those_who_push(step);
    expect_all(round(engine, keys, 1), all);
  });
}

/// Commands, pushes, and what is said about them.
bool is_of_a_round(const transport::FrameHeader& header) { return header.kind >= Kind::kPush; }

TEST(UnevenLosses, EveryWordCountsOnce) {
  JobSize size{kWorkers, 2};
  size.engine.retry_timeout = 100ms;
  std::atomic<int> lost{0};
  run_wired(size, push_join_and_push_again, losing_every(7, is_of_a_round, lost));
  EXPECT_GT(lost, 10);
}

TEST(UnevenRefusals, WhereEveryRankMustTakePart) {
  run_native({2}, [](Engine& engine) {
    EXPECT_THAT([&] { engine.join(); }, ThrowsMessage<std::invalid_argument>(HasSubstr("a library sums")));
  });
}

TEST(UnevenRefusals, WhereNoRoundWaitsForAnother) {
  JobSize size{2, 1};
  size.engine.async = AsyncPolicy{4};
  run_job(size, [](Engine& engine) {
    EXPECT_THAT([&] { engine.join(); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(HasSubstr("applies each push at once"), HasSubstr("call barrier()"))));
  });
}

TEST(UnevenRefusals, WhereRowsNeedEveryWorker) {
  run_peers({2}, [](Engine& engine) {
    const KeySpec table{"table", {10, 4}};
    engine.sparse().declare({&table, 1});
    EXPECT_THAT([&] { engine.join(); }, ThrowsMessage<std::invalid_argument>(HasSubstr("push no rows")));
  });
}

TEST(UnevenRefusals, WhoDoesNotJoinIsNamed) {
  JobSize size{2, 1};
  size.engine.slow_abort = 500ms;
  std::latch told(1);
  const auto join_alone = [&](Engine& engine) {
    if (engine.rank() == 1) return told.wait();
    EXPECT_THAT([&] { engine.join(); }, ThrowsMessage<transport::TimeoutError>(HasSubstr("worker 1")));
    told.count_down();
  };
  EXPECT_THAT([&] { run_job(size, join_alone); },
              ThrowsMessage<transport::TransportError>(HasSubstr("worker 0 gave up: exchange")));
}

INSTANTIATE_TEST_SUITE_P(Placements, UnevenJob,
                         testing::Values(Placement{"peers", run_peers, {kWorkers}},
                                         Placement{"servers", run_job, {kWorkers, 2}},
                                         Placement{"threads", run_job, {kWorkers, 1, 2}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gradwire::kvstore
