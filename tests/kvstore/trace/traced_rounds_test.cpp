// Whole jobs that trace: every partition has every stage, in causal order, on clocks that differ by 50 ms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"
#include "tests/kvstore/trace/traced_job.h"

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;
using testing::IsEmpty;

constexpr std::uint64_t kSteps = 3;
constexpr auto kApart = 50ms;
constexpr auto kError = 1ms;
const std::vector<KeySpec> kKeys = {{"w", {400'000}}, {"b", {300}}};

JobSize small_parts() {
  JobSize size{2, 2};
  size.engine.partition_elements = 65'536;
  size.engine.shard_bound_elements = 100'000;
  return size;
}

void train(Engine& engine) {
  engine.compression().set(spec("2bit:threshold=0.5"), "exact");
  const auto keys = engine.declare(kKeys);
  for (std::size_t k = 0; k < keys.size(); ++k) engine.init(keys[k], std::vector<float>(kKeys[k].elements()));
  engine.metrics().read_clocks(5s);
  for (unsigned step = 0; step < kSteps; ++step) {
    std::vector<std::vector<float>> values;
    std::vector<Ticket> tickets;
    for (const KeySpec& key : kKeys) values.push_back(random_floats(key.elements(), step + engine.rank()));
    for (std::size_t k = 0; k < keys.size(); ++k)
      tickets.push_back(engine.push_pull(keys[k], values[k], values[k], -static_cast<std::int32_t>(k)));
    for (const Ticket& ticket : tickets) ticket.wait();
  }
  engine.barrier();
}

/// Of a trace's readings, what its clock is behind that of a server; the best of each.
std::map<std::uint32_t, nanoseconds> ahead_by_server(const Trace& trace) {
  std::map<std::uint32_t, nanoseconds> ahead;
  for (const ClockReading& reading : trace.readings()) ahead[reading.server] = reading.ahead;
  return ahead;
}

using Id = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;  // key, offset, step
using Stages = std::map<Stage, Span>;

struct Rounds {
  std::map<std::pair<std::uint32_t, Id>, Stages> of_worker;  ///< with what servers did for that worker
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>, Span> waits;  ///< worker, key, step
  std::size_t wait_count = 0;
};

/// Sorts spans by worker and round; times are moved by `ahead` to the clock that is meant.
void sort_in(Rounds& rounds, Trace& trace, std::uint32_t rank, std::uint32_t workers, nanoseconds ahead) {
  for (Span span : trace.take_spans()) {
    span.begin -= ahead;
    span.end -= ahead;
    const Id id{span.key, span.offset, span.step};
    if (span.stage == Stage::kWait) {
      rounds.waits[{rank, span.key, span.step}] = span;
      ++rounds.wait_count;
    } else if (span.stage < Stage::kWait) {
      rounds.of_worker[{rank, id}][span.stage] = span;
    } else if (span.peer != kNoPeer) {
      rounds.of_worker[{span.peer, id}][span.stage] = span;
    } else {
      for (std::uint32_t worker = 0; worker < workers; ++worker)
        rounds.of_worker[{worker, id}][span.stage] = span;
    }
  }
}

constexpr Stage kCausalOrder[] = {Stage::kReady,       Stage::kEncode,        Stage::kQueue,
                                  Stage::kSend,        Stage::kServerReceive, Stage::kSum,
                                  Stage::kReplyEncode, Stage::kReplyQueue,    Stage::kReplySend,
                                  Stage::kReceive,     Stage::kDecode};

/// Each stage begins no earlier than the one before it, and, but for what is on the wire, when that has
/// ended.
void expect_causal_order(const Stages& stages) {
  ASSERT_EQ(stages.size(), std::size(kCausalOrder));
  const Span* before = nullptr;
  for (const Stage stage : kCausalOrder) {
    const Span& span = stages.at(stage);
    EXPECT_LE(span.begin, span.end) << name_of(stage);
    if (before != nullptr) {
      const bool by_wire = before->stage == Stage::kSend || before->stage == Stage::kReplySend;
      const auto earliest = by_wire ? before->begin : before->end;
      EXPECT_GE(span.begin + kError, earliest) << name_of(before->stage) << " to " << name_of(stage);
    }
    before = &span;
  }
}

std::size_t partitions(const JobSize& size) {
  std::vector<std::uint64_t> load(size.servers);
  std::size_t count = 0;
  for (const auto& parts : place_keys(kKeys, size.servers, {.max_elements = size.engine.partition_elements},
                                      size.engine.shard_bound_elements, load))
    count += parts.size();
  return count;
}

void expect_whole(const Rounds& rounds, const JobSize& size) {
  EXPECT_EQ(rounds.of_worker.size(), size.workers * kSteps * partitions(size));
  for (const auto& [id, stages] : rounds.of_worker) expect_causal_order(stages);
  EXPECT_EQ(rounds.waits.size(), size.workers * kSteps * kKeys.size());
  EXPECT_EQ(rounds.wait_count, rounds.waits.size());
  for (const auto& [id, stages] : rounds.of_worker) {
    const auto& [key, offset, step] = id.second;
    EXPECT_GE(rounds.waits.at({id.first, key, step}).end, stages.at(Stage::kDecode).end);
  }
}

TEST(TracedRounds, HaveEveryStageInCausalOrderOnClocksThatDiffer) {
  const JobSize size = small_parts();
  const TracedJob job = run_traced(size, kApart, train);
  const auto from_first = ahead_by_server(*job.workers[0]);
  Rounds rounds;
  for (std::uint32_t w = 0; w < size.workers; ++w) {
    const auto ahead = ahead_by_server(*job.workers[w]);
    ASSERT_EQ(ahead.size(), size.servers);
    for (std::uint32_t s = 0; s < size.servers; ++s) {
      const auto truth = kApart * (static_cast<int>(s) - static_cast<int>(w));
      EXPECT_LT(std::chrono::abs(ahead.at(s) - truth), kError) << "worker " << w << ", server " << s;
    }
    sort_in(rounds, *job.workers[w], w, size.workers, from_first.at(0) - ahead.at(0));
  }
  for (std::uint32_t s = 0; s < size.servers; ++s)
    sort_in(rounds, *job.servers[s], s, size.workers, from_first.at(s));
  expect_whole(rounds, size);
}

TEST(TracedRounds, HaveThemAmongPeersToo) {
  JobSize size = small_parts();
  const TracedJob job = run_traced_peers(size, kApart, train);
  const auto from_first = ahead_by_server(*job.workers[0]);
  Rounds rounds;
  for (std::uint32_t w = 0; w < size.workers; ++w)
    sort_in(rounds, *job.workers[w], w, size.workers, w == 0 ? 0ns : from_first.at(w));
  expect_whole(rounds, size);
}

TEST(TracedRounds, NameTheirKeys) {
  const TracedJob job = run_traced(small_parts(), 0ms, train);
  std::vector<std::string> names;
  for (const auto& [id, name] : job.workers[1]->key_names()) names.push_back(name);
  EXPECT_THAT(names, testing::UnorderedElementsAre("w", "b"));
}

TEST(TracedRounds, TellTheHostsRoundsFromTheJobsWhereHostsSumFirst) {
  JobSize size = small_parts();
  size.engine.trace = std::make_shared<Trace>();
  size.engine.trace->start();
  run_hosts(size, {"a", "a", "b", "b"}, train);
  std::map<std::pair<Tier, Stage>, std::size_t> counts;
  for (const Span& span : size.engine.trace->take_spans()) ++counts[{span.tier, span.stage}];
  // On a host one server has all, and a part there is a key of the job, which only leaders push.
  const JobSize host{4, 1, 1, size.engine};
  const std::size_t of_host = kSteps * partitions(host);
  EXPECT_EQ((counts[{Tier::kHost, Stage::kReady}]), 4 * of_host);
  EXPECT_EQ((counts[{Tier::kHost, Stage::kServerReceive}]), 4 * of_host);
  EXPECT_EQ((counts[{Tier::kHost, Stage::kSum}]), 2 * of_host);
  EXPECT_EQ((counts[{Tier::kHost, Stage::kWait}]), 4 * kSteps * kKeys.size());
  EXPECT_EQ((counts[{Tier::kJob, Stage::kEncode}]), 2 * of_host);
  EXPECT_EQ((counts[{Tier::kJob, Stage::kDecode}]), 2 * of_host);
  EXPECT_EQ((counts[{Tier::kJob, Stage::kWait}]), 0U);
}

TEST(TracedRounds, SayHowLongPushKeepsItsCaller) {
  const auto waits_of = [](const TracedJob& job) {
    std::size_t waits = 0;
    for (const Span& span : job.workers[0]->take_spans()) waits += span.stage == Stage::kWait;
    return waits;
  };
  const TracedJob job = run_traced(small_parts(), 0ms, [](Engine& engine) {
    const auto keys = engine.declare(kKeys);
    const auto mine = random_floats(kKeys[0].elements(), engine.rank());
    engine.push(keys[0], mine, 0);  // returns once it has been taken; nobody waits for its sum
    engine.barrier();
  });
  EXPECT_EQ(waits_of(job), 1U);
}

TEST(TracedRounds, LeaveNothingWhereTheTraceIsOff) {
  const auto trace = std::make_shared<Trace>();
  JobSize size = small_parts();
  size.engine.trace = trace;
  run_job(size, train);
  EXPECT_THAT(trace->take_spans(), IsEmpty());
  EXPECT_EQ(trace->dropped(), 0U);
}

TEST(TracedRounds, SumWhatTheySumWithoutATrace) {
  const auto sum_with = [](bool traced) {
    std::vector<float> values;
    JobSize size = small_parts();
    if (traced) {
      size.engine.trace = std::make_shared<Trace>();
      size.engine.trace->start();
    }
    run_job(size, [&](Engine& engine) {
      const auto keys = engine.declare(kKeys);
      auto mine = random_floats(kKeys[0].elements(), engine.rank());
      engine.push_pull(keys[0], mine, mine, 0).wait();
      if (engine.rank() == 0) values = mine;
    });
    return values;
  };
  EXPECT_EQ(sum_with(true), sum_with(false));
}

// Or this would never end.
TEST(ClockProbe, DoesNotWaitForAServerThatHasLeft) {
  run_traced_peers({2}, 0ms, [](Engine& engine) {
    engine.barrier();
    if (engine.rank() == 1) return engine.close();
    std::this_thread::sleep_for(200ms);
    engine.metrics().read_clocks(1s);
  });
}

}  // namespace
}  // namespace gradwire::kvstore
