// Whole jobs whose servers send weights rounded, or as deltas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/kvstore/folder.h"
#include "tests/kvstore/forgetful_line.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"
#include "transport/decorators/faulty_messenger.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using transport::Kind;
using Floats = std::vector<float>;
using Body = std::function<void(Engine&)>;
using Runner = void (*)(const JobSize&, const Body&);

constexpr std::uint64_t kElements = 150'000;  // several parts, on all servers
constexpr std::uint32_t kWorkers = 3;

JobSize job(std::optional<AsyncPolicy> async = std::nullopt) {
  JobSize size{kWorkers, 2};
  size.engine.async = async;
  size.engine.retry_timeout =
      std::chrono::minutes(10);  // on a busy machine answers that come twice are not counted
  size.engine.shard_bound_elements = 131'072;
  return size;
}

void run_on_hosts(const JobSize& size, const Body& body) { run_hosts(size, {"x", "x", "y"}, body); }

/// A worker that trains: its gradient is that of |weight - target|^2 / 2 with a target of its own, so that
/// workers pull the weight to the mean of theirs.
class Trainer {
 public:
  explicit Trainer(Engine& engine, std::uint64_t elements = kElements)
      : engine_(engine),
        target_(random_floats(elements, engine.rank())),
        weight_(random_floats(elements, 77)) {
    const KeySpec key{"w", {elements}};
    key_ = engine.declare({&key, 1})[0];
    engine.init(key_, weight_);
    engine.set_optimizer("sgd learning_rate=0.1 momentum=0.5");
  }

  /// push_pull() and push(), pull() by turns.
  void step() {
    Floats grad(weight_.size());
    for (std::size_t i = 0; i < grad.size(); ++i) grad[i] = weight_[i] - target_[i];
    if (steps_++ % 2 == 0) {
      engine_.push_pull(key_, grad, grad, 0).wait();
      weight_ = grad;
    } else {
      engine_.push(key_, grad, 0);
      engine_.pull(key_, weight_, 0).wait();
    }
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  /// Takes the weight that servers have, as after a checkpoint was loaded.
  void fetch() { engine_.pull(key_, weight_, 0).wait(); }
  const Floats& weight() const { return weight_; }

 private:
  Engine& engine_;
  const Floats target_;
  Floats weight_;
  KeyId key_ = 0;
  int steps_ = 0;
};

double largest_difference(const Floats& a, const Floats& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return largest;
}

std::uint64_t bytes_received(const Engine& engine) {
  std::uint64_t bytes = 0;
  for (const auto& peer : engine.metrics().counters()) bytes += peer.counters.bytes_received;
  return bytes;
}

class WeightRounds : public testing::TestWithParam<Runner> {};

TEST_P(WeightRounds, AllWorkersHaveTheSameBitsAndTrainAsWithWholeWeights) {
  Floats whole;
  for (const std::string weights : {"fp32", "fp16", "bf16", "delta:int8", "delta:2bit:threshold=0.25"}) {
    std::array<Floats, kWorkers> trained;
    GetParam()(job(), [&](Engine& engine) {
      engine.compression().set(spec("fp16"), "fp32", weights);
      Trainer trainer(engine);
      trainer.steps(30);
      trained[engine.rank()] = trainer.weight();
    });
    EXPECT_EQ(trained[0], trained[1]) << weights;
    EXPECT_EQ(trained[0], trained[2]) << weights;
    if (weights == "fp32") whole = trained[0];
    // 2bit moves a weight by its threshold or not at all: what workers have is nearer than that to the
    // servers'.
    EXPECT_LT(largest_difference(trained[0], whole), weights == "delta:2bit:threshold=0.25" ? 0.25 : 0.01)
        << weights;
    EXPECT_EQ(trained[0] == whole, weights == "fp32") << weights;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, WeightRounds, testing::Values(run_job, run_peers, run_on_hosts),
                         [](const auto& row) {
                           return row.param == Runner{run_job}     ? "Servers"
                                  : row.param == Runner{run_peers} ? "Peers"
                                                                   : "Hosts";
                         });

/// Also behind a round that is still under way.
TEST_P(WeightRounds, APullAfterTheAnswerWasSeenBringsTheServersOwn) {
  GetParam()(job(), [](Engine& engine) {
    engine.compression().set(spec("none"), "none", "delta:2bit:threshold=0.25");
    const KeySpec key{"w", {kElements}};
    const KeyId id = engine.declare({&key, 1})[0];
    engine.init(id, Floats(kElements));
    engine.set_optimizer("sgd learning_rate=1");
    for (int round = 1; round <= 3; ++round) {
      Floats held(kElements, 0.1F), weight(kElements);
      const Ticket answered = engine.push_pull(id, held, held, 0);
      engine.pull(id, weight, 0).wait();
      answered.wait();
      EXPECT_NEAR(weight.front(), -0.3 * round, 1e-5);
      EXPECT_NEAR(weight.back(), -0.3 * round, 1e-5);
      EXPECT_NEAR(held.back(), -0.3 - 0.25 * (round - 1), 1e-5);  // the first is told whole
    }
  });
}

TEST(WeightRounds, AreFewerBytesOnTheWire) {
  std::map<std::string, double> bytes;
  for (const std::string weights : {"fp32", "fp16", "delta:int8", "delta:2bit:threshold=0.05"}) {
    run_job(job(), [&](Engine& engine) {
      engine.compression().set(spec("none"), "none", weights);
      Trainer trainer(engine);
      trainer.steps(1);  // whole
      const std::uint64_t before = bytes_received(engine);
      trainer.steps(4);
      engine.barrier();
      if (engine.rank() == 0) bytes[weights] = static_cast<double>(bytes_received(engine) - before) / 4;
    });
  }
  const double elements = kElements;
  EXPECT_NEAR(bytes["fp32"], 4 * elements, 2000);  // headers
  EXPECT_NEAR(bytes["fp16"], 2 * elements, 2000);
  EXPECT_NEAR(bytes["delta:int8"], (1 + 4.0 / 256) * elements, 2000);
  EXPECT_NEAR(bytes["delta:2bit:threshold=0.05"], elements / 4, 2000);
}

/// Pushes and pulls, and answers to them.
bool is_of_a_weight(const transport::FrameHeader& header) {
  return header.kind == Kind::kPush || header.kind == Kind::kPull || header.kind == Kind::kValue;
}

TEST(WeightRounds, ADeltaIsAppliedOnceWhateverIsLost) {
  std::array<Floats, kWorkers> expected, forgetful;
  const auto body = [](std::array<Floats, kWorkers>& trained) {
    return [&trained](Engine& engine) {
      engine.compression().set(spec("none"), "none", "delta:int4");
      Trainer trainer(engine);
      trainer.steps(12);
      trained[engine.rank()] = trainer.weight();
    };
  };
  run_job(job(), body(expected));
  JobSize size = job();
  size.engine.retry_timeout = std::chrono::milliseconds(50);
  std::atomic<int> lost = 0;
  run_wired(size, body(forgetful), losing_every(5, is_of_a_weight, lost));
  EXPECT_GT(lost, 10);
  for (const Floats& weight : forgetful) EXPECT_EQ(weight, expected[0]);
}

/// Weights to which each worker adds ones, 20 times, and zeros until all differences have been sent.
void expect_all_told(Engine& engine, std::uint64_t rounds_of_zeros) {
  const KeySpec spec{"w", {kElements}};
  const KeyId key = engine.declare({&spec, 1})[0];
  engine.init(key, Floats(kElements, 0.0F));
  engine.set_optimizer("test rescale_grad=0.125");
  Floats weight(kElements);
  for (unsigned step = 0; step < 10; ++step) {
    engine.push_pull(key, Floats(kElements, 1.0F), weight, 0).wait();
    engine.push(key, Floats(kElements, 1.0F), 0).wait();
    engine.pull(key, weight, 0).wait();
  }
  engine.barrier();
  for (std::uint64_t i = 0; i < rounds_of_zeros; ++i)
    engine.push_pull(key, Floats(kElements, 0.0F), weight, 0).wait();
  EXPECT_LT(largest_difference(weight, Floats(kElements, kWorkers * 20 * 0.125F)), 1e-5);
  engine.barrier();
}

TEST(WeightRounds, AtOnceEachWorkerIsToldAllThatItsWeightLacks) {
  const std::pair<std::string, double> bits[] = {{"fp32", 32}, {"fp16", 16}, {"delta:int8", 8.125}};
  for (const auto& [weights, bits_an_element] : bits) {
    std::atomic<std::uint64_t> bytes = 0;
    run_job(job(AsyncPolicy{}), [&, text = weights](Engine& engine) {
      engine.compression().set(spec("none"), "none", text);
      expect_all_told(engine, 20);
      if (engine.rank() == 0) bytes = bytes_received(engine);
    });
    const double whole = weights.starts_with("delta") ? 1 : 0;  // the first
    const double weights_received = static_cast<double>(bytes) / (4 * kElements);
    const double rounds = 10 + 10 + 20;  // push_pull(), pull(), and of zeros
    EXPECT_NEAR(weights_received, whole + (rounds - whole) * bits_an_element / 32, 0.05) << weights;
  }
}

TEST(WeightRounds, AtOnceADeltaIsAppliedOnceWhateverIsLost) {
  JobSize size = job(AsyncPolicy{2});
  size.engine.retry_timeout = std::chrono::milliseconds(50);
  std::atomic<int> lost = 0;
  const auto body = [](Engine& engine) {
    engine.compression().set(spec("none"), "none", "delta:int8");
    expect_all_told(engine, 20);
  };
  run_wired(size, body, losing_every(5, is_of_a_weight, lost));
  EXPECT_GT(lost, 10);
}

TEST(WeightRounds, AtOnceADeltaIsAppliedOnceWhateverComesTwiceOrLate) {
  JobSize size = job(AsyncPolicy{2});
  size.engine.retry_timeout = std::chrono::milliseconds(50);
  const auto faults = std::make_shared<transport::Faults>(
      transport::parse_faults("seed=5,duplicate=30%,delay=30ms@10%,reorder=10%,drop=5%"));
  const auto body = [](Engine& engine) {
    engine.compression().set(spec("none"), "none", "delta:int8");
    expect_all_told(engine, 20);
  };
  run_wired(size, body, [&](Line line) { return transport::disturbed(std::move(line), faults); });
  EXPECT_GT(faults->counts().of(transport::Fault::kDuplicated), 0U);
}

TEST(WeightRounds, AWorkerThatHasJoinedGoesOnWithTheOthersWeight) {
  std::array<Floats, kWorkers> trained;
  run_job(job(), [&](Engine& engine) {
    engine.compression().set(spec("none"), "none", "delta:int4");
    Trainer trainer(engine);
    trainer.steps(3);
    if (engine.rank() != 1) trainer.steps(2);
    engine.join();
    trainer.steps(2);
    trained[engine.rank()] = trainer.weight();
  });
  EXPECT_EQ(trained[1], trained[0]);
  EXPECT_EQ(trained[2], trained[0]);
}

TEST(WeightRounds, AWorkerThatWasBehindFirstPullsWhatTheOthersHold) {
  std::array<Floats, kWorkers> pulled;
  run_job(job(), [&](Engine& engine) {
    engine.compression().set(spec("none"), "none", "delta:2bit:threshold=0.25");
    Trainer trainer(engine);
    trainer.steps(engine.rank() == 1 ? 1 : 2);
    engine.join();
    if (engine.rank() == 1) trainer.fetch();
    pulled[engine.rank()] = trainer.weight();
  });
  EXPECT_EQ(pulled[1], pulled[0]);
}

TEST(WeightRounds, ACheckpointGoesOnBitForBit) {
  const Folder folder;
  Floats undisturbed, resumed;
  run_job(job(), [&](Engine& engine) {
    engine.compression().set(spec("int8"), "fp32", "delta:topk:ratio=0.1");
    Trainer trainer(engine);
    trainer.steps(4);
    engine.checkpoints().save(folder.path());
    trainer.steps(4);
    if (engine.rank() == 0) undisturbed = trainer.weight();
  });
  JobSize other = job();
  other.servers = 3;
  for (const JobSize& size : {job(), other}) {
    run_job(size, [&](Engine& engine) {
      engine.compression().set(spec("int8"), "fp32", "delta:topk:ratio=0.1");
      Trainer trainer(engine);
      engine.checkpoints().load(folder.path());
      trainer.fetch();
      trainer.steps(4);
      if (engine.rank() == 0) resumed = trainer.weight();
    });
    const double allowed =
        size.servers == job().servers ? 0 : 0.05;  // other partitions select other elements
    EXPECT_LE(largest_difference(resumed, undisturbed), allowed);
  }
}

TEST(WeightRounds, WeightsThatAreNotFiniteArriveAsTheyAre) {
  for (const std::string weights : {"fp16", "delta:int8"}) {
    run_job({2, 1}, [&](Engine& engine) {
      engine.compression().set(spec("none"), "none", weights);
      const KeySpec spec{"w", {3}};
      const KeyId key = engine.declare({&spec, 1})[0];
      engine.init(key, Floats{1, 2, 3});
      engine.set_optimizer("test rescale_grad=1");
      Floats weight(3);
      engine.push_pull(key, Floats{1, 1, 1}, weight, 0).wait();
      engine.push_pull(key, Floats{0, std::numeric_limits<float>::infinity(), 1}, weight, 0).wait();
      EXPECT_EQ(weight, (Floats{3, std::numeric_limits<float>::infinity(), 7})) << weights;
    });
  }
}

// A whole partition went as floats where one of its elements had no other form, so that tuning changed bits.
TEST(WeightRounds, WhatDoesNotFitChangesNoOtherBitHoweverPartitionsAreCut) {
  constexpr std::uint64_t kUnits = 3;
  const std::uint64_t elements = kUnits * compress::kUnitElements + 100;
  for (const std::string weights : {"fp16", "bf16", "delta:int8", "delta:topk:ratio=0.1", "delta:randomk"}) {
    std::vector<Floats> by_cut;
    for (const std::uint64_t units : {std::uint64_t{1}, kUnits + 1}) {
      JobSize size{2, 1};
      size.engine.partition_elements = units * compress::kUnitElements;
      size.engine.shard_bound_elements = 1;
      Floats seen;
      run_job(size, [&](Engine& engine) {
        engine.compression().set(spec("none"), "none", weights);
        const KeySpec spec{"w", {elements}};
        const KeyId key = engine.declare({&spec, 1})[0];
        engine.init(key, random_floats(elements, 7));
        engine.set_optimizer("test rescale_grad=1");
        for (unsigned step = 0; step < 4; ++step) {
          Floats weight = random_floats(elements, 10 * step + engine.rank());
          if (step == 1) weight[70'000] = std::numeric_limits<float>::infinity();
          engine.push_pull(key, weight, weight, 0).wait();
          if (engine.rank() == 0) seen.insert(seen.end(), weight.begin(), weight.end());
        }
      });
      by_cut.push_back(seen);
    }
    EXPECT_EQ(by_cut[0], by_cut[1]) << weights;
    EXPECT_EQ(by_cut[0][2 * elements + 70'000], std::numeric_limits<float>::infinity());
  }
}

TEST(WeightRounds, RanksThatDifferAreToldSo) {
  run_job(job(), [](Engine& engine) {
    const std::string weights = engine.rank() == 1 ? "fp16" : "delta:int8";
    EXPECT_THAT([&] { engine.compression().set(spec("none"), "none", weights); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("weights=")));
  });
}

TEST(WeightRounds, WhereALibrarySumsNoServerSendsThem) {
  run_native(job(), [](Engine& engine) {
    EXPECT_THAT([&] { engine.compression().set(spec("none"), "none", "fp16"); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("where a library sums no server sends")));
    engine.compression().set(spec("fp16"), "fp16", "fp32");
  });
}

// As MXNet's servers: what they hold when the optimizer comes is the sum of the last round.
TEST(Weights, BeginWithTheLastSumWhereTheOptimizerComesLater) {
  for (const Runner run : {run_job, run_peers, run_native, run_on_hosts}) {
    run(job(), [](Engine& engine) {
      const KeySpec key{"w", {kElements}};
      const KeyId w = engine.declare({&key, 1})[0];
      engine.init(w, Floats(kElements, 9));
      Floats values;
      const auto push = [&](float value) {
        values.assign(kElements, value);
        engine.push_pull(w, values, values, 0).wait();
        return values;
      };
      push(1);
      EXPECT_EQ(push(2), Floats(kElements, 2 * kWorkers));
      engine.set_optimizer("test rescale_grad=0.5");
      engine.pull(w, values, 0).wait();
      EXPECT_EQ(values, Floats(kElements, 2 * kWorkers));
      EXPECT_EQ(push(4), Floats(kElements, 4 * kWorkers));
    });
  }
}

}  // namespace
}  // namespace gradwire::kvstore
