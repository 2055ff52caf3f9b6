// Rows through whole jobs in which servers apply every push when it arrives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

#include "kvstore/rows/sparse_rows.h"
#include "tests/kvstore/folder.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/sums.h"
#include "transport/decorators/faulty_messenger.h"

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using Ids = std::vector<std::int64_t>;
using Values = std::vector<float>;
using Runner = void (*)(const JobSize&, const std::function<void(Engine&)>&);

constexpr std::uint64_t kRows = 101;
constexpr std::uint32_t kWidth = 37;

JobSize async(std::uint32_t workers, std::optional<std::uint64_t> bound = std::nullopt) {
  JobSize size{workers, 2};
  size.engine.async = AsyncPolicy{bound};
  size.engine.shard_bound_elements = 1000;  // so that the table is spread
  return size;
}

/// One worker's end of a table.
class Embedding {
 public:
  explicit Embedding(Engine& engine, std::uint32_t width = kWidth) : engine_(engine), width_(width) {
    table_ = engine.sparse().declare(std::vector<KeySpec>{{"embedding", {kRows, width}}})[0];
  }

  void init(const Ids& ids = {}, const Values& values = {}) { engine_.sparse().init(table_, ids, values, 0); }
  Ticket push(const Ids& ids, const Values& values) { return engine_.sparse().push(table_, ids, values, 0); }
  Rows push_pull(const Ids& ids, const Values& values) {
    return received(engine_.sparse().push_pull(table_, ids, values, 0));
  }
  /// All rows, those that were never written as zeros.
  Values all() {
    Ids ids;
    for (std::uint64_t id = 0; id < kRows; ++id) ids.push_back(static_cast<std::int64_t>(id));
    return dense(received(engine_.sparse().pull(table_, ids, 0)));
  }
  /// Once all pushes of all workers are in.
  Values settled() {
    all();  // behind this worker's own pushes
    engine_.barrier();
    Values values = all();
    engine_.barrier();
    return values;
  }
  Values residual() { return dense(engine_.sparse().residual(table_)); }

 private:
  Rows received(const PulledRows& pulled) {
    pulled.done.wait();
    return engine_.sparse().rows_of(pulled);
  }
  Values dense(const Rows& rows) const {
    Values values(kRows * width_);
    for (std::size_t i = 0; i < rows.ids.size(); ++i)
      std::ranges::copy(rows.row(i, width_), values.begin() + static_cast<long>(rows.ids[i] * width_));
    return values;
  }

  Engine& engine_;
  std::uint32_t width_;
  TableId table_ = 0;
};

/// What a rank pushes in a step: some rows, each once, in no order; now and then none.
struct Given {
  Given(std::uint32_t rank, unsigned step) {
    std::mt19937 random(1000 * step + rank);
    const auto stride =
        static_cast<std::int64_t>(1 + random() % 50);  // which has no factor in common with 101
    for (std::int64_t n = 0, count = static_cast<std::int64_t>(random() % 30); n < count; ++n)
      ids.push_back(n * stride % static_cast<std::int64_t>(kRows));
    values = random_floats(ids.size() * kWidth, static_cast<unsigned>(random()));
  }

  Ids ids;
  Values values;
};

class RowsAtOncePlacement : public testing::TestWithParam<Runner> {};

TEST_P(RowsAtOncePlacement, EveryPushOfEveryWorkerGoesInOnce) {
  for (const std::string codec : {"none", "fp16", "bf16", "2bit:threshold=0.5"}) {
    GetParam()(async(5), [&](Engine& engine) {
      engine.compression().set(spec(codec), "fp32");
      Embedding table(engine);
      table.init();
      engine.set_optimizer("test rescale_grad=1");
      const auto own = static_cast<std::int64_t>(engine.rank());
      const Values grad(2 * kWidth, 0.5F);
      for (int step = 0; step < 3; ++step) {
        table.push({100, own}, grad);
        const Rows pushed = table.push_pull({own, 100}, grad);
        EXPECT_EQ(pushed.ids, (std::vector<std::uint64_t>{engine.rank(), 100}));
        EXPECT_EQ(pushed.values.front(), static_cast<float>(step + 1)) << "nobody else pushes that row";
        EXPECT_GE(pushed.values.back(), static_cast<float>(step + 1));
      }
      Values expected(kRows * kWidth);
      std::fill_n(expected.begin(), 5 * kWidth, 3.0F);
      std::fill_n(expected.end() - kWidth, kWidth, 15.0F);
      EXPECT_EQ(table.settled(), expected) << codec;
    });
  }
}

TEST_P(RowsAtOncePlacement, WhatACodecKeepsBackIsAllThatTheTableLacks) {
  for (const std::string codec : {"2bit:threshold=0.25", "int8", "int4:block=32", "1bit", "topk"}) {
    std::vector<Values> pushed(3, Values(kRows * kWidth)), kept(3);
    Values table_in_the_end;
    GetParam()(async(3), [&](Engine& engine) {
      engine.compression().set(spec(codec), "fp32");
      Embedding table(engine);
      table.init();
      engine.set_optimizer("test rescale_grad=1");
      for (unsigned step = 0; step < 6; ++step) {
        const Given mine(engine.rank(), step);
        for (std::size_t i = 0; i < mine.ids.size(); ++i) {
          for (std::size_t e = 0; e < kWidth; ++e)
            pushed[engine.rank()][static_cast<std::size_t>(mine.ids[i]) * kWidth + e] +=
                mine.values[i * kWidth + e];
        }
        table.push(mine.ids, mine.values);
      }
      const Values last = table.settled();
      kept[engine.rank()] = table.residual();
      if (engine.rank() == 0) table_in_the_end = last;
    });
    double largest = 0;
    for (std::size_t i = 0; i < kRows * kWidth; ++i) {
      double lacks = -table_in_the_end[i];
      for (std::size_t rank = 0; rank < 3; ++rank) lacks += pushed[rank][i] - kept[rank][i];
      largest = std::max(largest, std::abs(lacks));
    }
    EXPECT_LT(largest, 1e-5) << codec;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, RowsAtOncePlacement, testing::Values(run_job, run_peers),
                         [](const auto& row) { return row.param == Runner{run_job} ? "Servers" : "Peers"; });

/// SGD with momentum on rows that are pushed, and on no others.
class Oracle {
 public:
  void step(const Given& given) {
    for (std::size_t i = 0; i < given.ids.size(); ++i) {
      const std::size_t begin = static_cast<std::size_t>(given.ids[i]) * kWidth;
      for (std::size_t e = 0; e < kWidth; ++e) {
        float& weight = weights[begin + e];
        float& momentum = momenta_[begin + e];
        momentum = 0.9F * momentum + (given.values[i * kWidth + e] + 0.01F * weight);
        weight -= 0.1F * momentum;
      }
    }
  }

  Values weights = Values(kRows * kWidth);

 private:
  Values momenta_ = Values(kRows * kWidth);
};

TEST(RowsAtOnce, OneWorkersPushesGiveTheBitsOfTheOptimizerOnThoseRows) {
  run_job(async(2), [](Engine& engine) {
    Embedding table(engine);
    const Given first(7, 77);
    table.init(first.ids, first.values);
    engine.set_optimizer("sgd learning_rate=0.1 momentum=0.9 wd=0.01");
    Oracle oracle;
    for (std::size_t i = 0; i < first.ids.size(); ++i)
      std::ranges::copy(std::span(first.values).subspan(i * kWidth, kWidth),
                        oracle.weights.begin() + first.ids[i] * kWidth);
    for (unsigned step = 0; step < 8; ++step) {
      const Given mine(0, step);
      oracle.step(mine);
      if (engine.rank() != 0) continue;
      table.push(mine.ids, mine.values);
      ASSERT_EQ(table.all(), oracle.weights) << step;
    }
    EXPECT_EQ(table.settled(), oracle.weights);
  });
}

TEST(RowsAtOnce, SeveralWorkersUpdatesAddUp) {
  run_job(async(3), [](Engine& engine) {
    Embedding table(engine);
    table.init();
    engine.set_optimizer("sgd learning_rate=0.5");
    std::vector<double> expected(kRows * kWidth);
    for (unsigned step = 0; step < 10; ++step) {
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        const Given theirs(rank, step);
        for (std::size_t i = 0; i < theirs.values.size(); ++i)
          expected[static_cast<std::size_t>(theirs.ids[i / kWidth]) * kWidth + i % kWidth] -=
              0.5 * theirs.values[i];
      }
      const Given mine(engine.rank(), step);
      if (engine.rank() == 2) std::this_thread::sleep_for(3ms);
      table.push(mine.ids, mine.values);
    }
    const Values weights = table.settled();
    double largest = 0;
    for (std::size_t i = 0; i < weights.size(); ++i)
      largest = std::max(largest, std::abs(weights[i] - expected[i]));
    EXPECT_LT(largest, 1e-5);
  });
}

TEST(RowsAtOnce, NobodyWaitsForAWorkerThatDoesNotPush) {
  run_job(async(2), [](Engine& engine) {
    Embedding table(engine);
    table.init();
    engine.set_optimizer("test rescale_grad=1");
    for (float step = 1; engine.rank() == 0 && step <= 5; ++step)
      EXPECT_EQ(table.push_pull({3}, Values(kWidth, 1)).values, Values(kWidth, step));
    engine.barrier();
    EXPECT_EQ(table.all()[3 * kWidth], 5.0F);
    EXPECT_EQ(engine.metrics().staleness(),
              (engine.rank() == 0 ? std::map<std::uint64_t, std::uint64_t>{{0, 10}}
                                  : std::map<std::uint64_t, std::uint64_t>()));
    engine.barrier();
  });
}

/// The most that a worker had pushed before another, whose rows it was given, in a job whose last is slow.
int largest_lead(std::optional<std::uint64_t> bound) {
  constexpr std::uint32_t kWorkers = 3;
  std::array<std::atomic<int>, kWorkers> begun{};
  std::atomic<int> largest = 0;
  run_job(async(kWorkers, bound), [&](Engine& engine) {
    Embedding table(engine);
    table.init();
    engine.set_optimizer("test rescale_grad=1");
    for (int step = 0; step < 10; ++step) {
      if (engine.rank() == kWorkers - 1) std::this_thread::sleep_for(15ms);
      ++begun[engine.rank()];
      table.push_pull({static_cast<std::int64_t>(engine.rank())}, Values(kWidth, 1));
      for (const auto& other : begun) {
        int lead = largest;
        while (step + 1 - other > lead && !largest.compare_exchange_weak(lead, step + 1 - other)) {
        }
      }
    }
    Values expected(kRows * kWidth);
    std::fill_n(expected.begin(), kWorkers * kWidth, 10.0F);
    EXPECT_EQ(table.settled(), expected);
  });
  return largest;
}

TEST(RowsAtOnce, TheBoundHolds) {
  EXPECT_LE(largest_lead(0), 0);
  EXPECT_LE(largest_lead(3), 3);
  EXPECT_GT(largest_lead(std::nullopt), 3);
}

// Declaring a table is a collective, too: who is held back for a worker that waits there can go on.
TEST(RowsAtOnce, WhoDeclaresATableHoldsNobodyBack) {
  JobSize size = async(2, 0);
  size.engine.slow_abort = 20s;  // it would come to this
  run_job(size, [](Engine& engine) {
    Embedding table(engine);
    table.init();
    engine.set_optimizer("test rescale_grad=1");
    for (int step = 0; engine.rank() == 0 && step < 3; ++step) table.push_pull({3}, Values(kWidth, 1));
    const auto other = engine.sparse().declare(std::vector<KeySpec>{{"other", {4, 2}}})[0];
    if (engine.rank() == 0) table.push_pull({3}, Values(kWidth, 1));
    engine.sparse().init(other, {}, {}, 0);
  });
}

TEST(RowsAtOnce, WhatIsLostDamagedOrDoubledGoesInOnce) {
  const auto faults = std::make_shared<transport::Faults>(
      transport::parse_faults("drop=10%,duplicate=10%,reorder=5%,corrupt=1%"));
  JobSize size = async(3, 2);
  size.engine.retry_timeout = 20ms;
  run_wired(
      size,
      [](Engine& engine) {
        Embedding table(engine);
        table.init();
        engine.set_optimizer("test rescale_grad=1");
        const Values ones(2 * kWidth, 1.0F);
        for (int step = 0; step < 15; ++step) {
          table.push({3, 4}, ones);
          table.push_pull({4, 9}, ones);
        }
        Values expected(kRows * kWidth);
        std::fill_n(expected.begin() + 3 * kWidth, kWidth, 45.0F);
        std::fill_n(expected.begin() + 4 * kWidth, kWidth, 90.0F);
        std::fill_n(expected.begin() + 9 * kWidth, kWidth, 45.0F);
        EXPECT_EQ(table.settled(), expected);
        std::uint64_t parts = 0;
        for (const auto& row : engine.metrics().staleness()) parts += row.second;
        EXPECT_EQ(parts, 2U * 30U) << "each push once at each server";
      },
      [&](Line line) { return transport::disturbed(std::move(line), faults); });
  EXPECT_GT(faults->counts().of(transport::Fault::kDropped), 0U);
  EXPECT_GT(faults->counts().of(transport::Fault::kDuplicated), 0U);
}

TEST(RowsAtOnce, WithoutAnOptimizerAPushIsRefusedOnEveryWorkerAndTheStoreLivesOn) {
  run_job(async(3), [](Engine& engine) {
    Embedding table(engine);
    table.init({3}, Values(kWidth, 2));
    const auto is_refusal = testing::ThrowsMessage<std::invalid_argument>(
        HasSubstr("applies each push to the weight at once, and there is no optimizer"));
    EXPECT_THAT([&] { table.push({3}, Values(kWidth, 1)); }, is_refusal);
    EXPECT_THAT([&] { table.push_pull({3}, Values(kWidth, 1)); }, is_refusal);
    engine.set_optimizer("test rescale_grad=1");
    table.push({3}, Values(kWidth, 1));
    EXPECT_EQ(table.settled()[3 * kWidth], 5.0F);
  });
}

TEST(RowsAtOnce, ANanIsToldToWhoPushedIt) {
  run_job(async(2), [](Engine& engine) {
    engine.compression().set(spec("fp16"), "fp16");
    Embedding table(engine);
    table.init();
    engine.set_optimizer("test rescale_grad=1");
    Values values(kWidth, 1);
    if (engine.rank() == 1) values[0] = std::nanf("");
    const Ticket pushed = table.push({static_cast<std::int64_t>(engine.rank())}, values);
    EXPECT_EQ(pushed.nonfinite(), engine.rank() == 1);
    EXPECT_EQ(table.settled()[kWidth], 0.0F) << "it is left out";
  });
}

/// Saves a job of three workers that have pushed 5, 1 and 2 times, one after the other, and returns the table
/// after one push more of rank 0.
Values save(const std::string& folder, const std::string& codec) {
  Values undisturbed;
  run_job(async(3), [&](Engine& engine) {
    engine.compression().set(spec(codec), "fp32");
    Embedding table(engine);
    table.init();
    engine.set_optimizer("adam learning_rate=0.1");
    constexpr std::array<unsigned, 3> kPushes = {5, 1, 2};
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      for (unsigned step = 0; rank == engine.rank() && step < kPushes[rank]; ++step) {
        const Given mine(rank, step);
        table.push(mine.ids, mine.values).wait();
      }
      engine.barrier();
    }
    engine.checkpoints().save(folder);
    if (engine.rank() == 0) {
      const Given more(0, 50);
      table.push(more.ids, more.values);
      undisturbed = table.all();
    }
    engine.barrier();
  });
  return undisturbed;
}

TEST(RowsAtOnce, ACheckpointGoesOnWithOtherWorkersAndServers) {
  for (const std::string codec : {"none", "topk"}) {
    const Folder folder;
    const Values undisturbed = save(folder.path(), codec);
    JobSize others = async(2);
    others.servers = 3;
    for (const JobSize& size : {async(3), async(3, 0), others}) {
      if (codec != "none" && size.workers != 3) continue;  // residuals are shared out anew
      Values resumed;
      run_job(size, [&](Engine& engine) {
        engine.compression().set(spec(codec), "fp32");
        Embedding table(engine);
        table.init({3}, Values(kWidth, 9));
        engine.checkpoints().load(folder.path());
        if (engine.rank() == 0) {
          const Given more(0, 50);
          table.push(more.ids, more.values).wait();
        }
        engine.barrier();  // where the others wait, so that no bound holds rank 0 back
        if (engine.rank() == 0) resumed = table.all();
        engine.barrier();
      });
      EXPECT_EQ(resumed, undisturbed) << codec << ", " << size.workers << " workers";
    }
  }
}

TEST(RowsAtOnce, ACheckpointGoesOnWhereWorkersGoInStepAndBack) {
  const Folder folder;
  save(folder.path(), "none");
  JobSize in_step = async(2);
  in_step.engine.async.reset();
  Values before;
  run_job(in_step, [&](Engine& engine) {
    Embedding table(engine);
    table.init();
    engine.checkpoints().load(folder.path());
    const Given mine(engine.rank(), 60);
    table.push_pull(mine.ids, mine.values);
    engine.checkpoints().save(folder.path());
    const Values now = table.all();
    if (engine.rank() == 0) before = now;
  });
  run_job(async(2), [&](Engine& engine) {
    Embedding table(engine);
    table.init();
    engine.checkpoints().load(folder.path());
    EXPECT_EQ(table.settled(), before);
    table.push_pull({3}, Values(kWidth, 1));
    EXPECT_NE(table.settled(), before);
  });
}

}  // namespace
}  // namespace gradwire::kvstore
