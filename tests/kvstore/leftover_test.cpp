// What a lossy codec has not sent is sent with the next values, once they travel without loss: after whatever
// change of codec, reply or optimizer, what was delivered and what is left is what was given.
#include "kvstore/leftover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>

#include "kvstore/engine/engine.h"
#include "kvstore/rows/sparse_rows.h"
#include "tests/kvstore/folder.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::FloatNear;
using testing::Pointwise;
using Floats = std::vector<float>;
using Body = std::function<void(Engine&)>;
using Runner = void (*)(const JobSize&, const Body&);

constexpr std::uint64_t kElements = 70'000;  // two codec units
constexpr std::uint32_t kWorkers = 4;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Compressed {
  const char* codec;
  const char* reply;
};

constexpr Compressed kLossy[] = {
    {"fp16", "fp16"},
    {"int4", "int4"},
    {"2bit:threshold=0.5", "exact"},
    {"2bit:threshold=0.5", "2bit"},
    {"2bit:threshold=auto", "exact"},
    {"2bit:threshold=auto", "2bit"},
    {"1bit", "1bit"},
    {"topk:ratio=0.01", "topk"},
    {"randomk:ratio=0.1", "randomk"},
    {"terngrad", "terngrad"},
};

void add(Floats& sum, const Floats& more) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

void run_on_hosts(const JobSize& size, const Body& body) { run_hosts(size, {"x", "x", "y", "y"}, body); }

class Leftovers : public testing::TestWithParam<Runner> {};
constexpr const char* kNames[] = {"Servers", "Peers", "Native", "Hosts"};
INSTANTIATE_TEST_SUITE_P(All, Leftovers, testing::Values(run_job, run_peers, run_native, run_on_hosts),
                         [](const auto& info) { return kNames[info.index]; });

/// One key of one worker: what all workers have given to it, and what it has delivered.
class Ledger {
 public:
  Ledger(Engine& engine, KeyId key) : engine_(engine), key_(key), given_(kElements), delivered_(kElements) {}

  void round(unsigned seed) {
    add(given_, rank_order_sum(kElements, seed, engine_.num_workers()));
    exchange(random_floats(kElements, seed + engine_.rank()));
  }
  void round_of_zeros() { exchange(Floats(kElements)); }
  void expect_all_delivered(const std::string& why) const {
    EXPECT_THAT(delivered_, Pointwise(FloatNear(2e-4F), given_)) << why;
  }

 private:
  void exchange(Floats values) {
    engine_.push_pull(key_, values, values, 0).wait();
    add(delivered_, values);
  }

  Engine& engine_;
  KeyId key_;
  Floats given_, delivered_;
};

KeyId declare_one(Engine& engine) { return engine.declare(std::vector{KeySpec{"w", {kElements}}}).front(); }

TEST_P(Leftovers, NoneSendsWhatALossyCodecHasLeft) {
  for (const Compressed& lossy : kLossy) {
    // A library that sums halves rounds their sums, which nobody keeps the rest of.
    if (GetParam() == run_native && lossy.codec == std::string_view("fp16")) continue;
    GetParam()({kWorkers, 2}, [&](Engine& engine) {
      engine.compression().set(spec(lossy.codec), lossy.reply);
      Ledger ledger(engine, declare_one(engine));
      for (unsigned step = 0; step < 3; ++step) ledger.round(10 * step);
      engine.compression().set(spec("none"), "none");
      ledger.round(90);
      ledger.expect_all_delivered(std::string(lossy.codec) + " " + lossy.reply);
      EXPECT_EQ(engine.residuals().norm(), 0);
    });
  }
}

TEST_P(Leftovers, AReplyWithoutLossHasWhatRepliesBeforeHaveLeft) {
  for (const char* codec : {"2bit:threshold=0.5", "2bit:threshold=auto"}) {
    for (const char* reply : {"exact", "fp32"}) {
      GetParam()({kWorkers, 2}, [&](Engine& engine) {
        engine.compression().set(spec(codec), "2bit");
        Ledger ledger(engine, declare_one(engine));
        for (unsigned step = 0; step < 3; ++step) ledger.round(10 * step);
        engine.compression().set(spec(codec), reply);
        for (unsigned step = 3; step < 6; ++step) ledger.round(10 * step);  // goes on, scales agreed anew
        engine.compression().set(spec("none"), "none");
        ledger.round_of_zeros();
        ledger.expect_all_delivered(std::string(codec) + " " + reply);
      });
    }
  }
}

TEST_P(Leftovers, SlotsOfABucketSendWhatIsLeft) {
  GetParam()({kWorkers, 2}, [&](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "2bit");
    const auto keys = engine.declare(std::vector<KeySpec>{{"a", {300}}, {"b", {70}}});
    std::vector<Floats> values{Floats(300), Floats(70)}, given = values, delivered = values;
    engine.slots().bind(keys, std::vector<ArrayView>(values.begin(), values.end()));
    const auto step = [&](float scale) {
      for (unsigned i = 0; i < 2; ++i) {
        Floats sum(values[i].size());
        for (std::uint32_t rank = 0; rank < engine.num_workers(); ++rank) {
          Floats theirs = random_floats(values[i].size(), 10 * i + rank);
          for (float& value : theirs) value *= scale;
          add(sum, theirs);
          if (rank == engine.rank()) std::ranges::copy(theirs, values[i].begin());
        }
        add(given[i], sum);
        engine.slots().mark_ready(i);
      }
      ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(60)));
      for (unsigned i = 0; i < 2; ++i) add(delivered[i], values[i]);
    };
    for (const float scale : {1.0F, 0.3F, 2.0F}) step(scale);
    engine.compression().set(spec("none"), "none");
    step(1);
    for (unsigned i = 0; i < 2; ++i) EXPECT_THAT(delivered[i], Pointwise(FloatNear(1e-4F), given[i]));
  });
}

TEST_P(Leftovers, AnOptimizerThatComesLaterGetsWhatIsLeft) {
  GetParam()({kWorkers, 2}, [&](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "2bit");
    const KeyId key = declare_one(engine);
    Floats weight(kElements), given(kElements), before(kElements);
    const auto push = [&](unsigned seed) {
      add(given, rank_order_sum(kElements, seed, engine.num_workers()));
      Floats values = random_floats(kElements, seed + engine.rank());
      engine.push_pull(key, values, weight, 0).wait();
    };
    for (unsigned step = 0; step < 3; ++step) {
      push(10 * step);
      if (step < 2) add(before, weight);
    }
    engine.set_optimizer("test");  // from the last sum on, adds what comes
    engine.compression().set(spec("none"), "none");
    push(70);
    add(before, weight);
    EXPECT_THAT(before, Pointwise(FloatNear(2e-4F), given));
  });
}

TEST_P(Leftovers, AStepThatIsRolledBackHasSentNothingOfIt) {
  GetParam()({kWorkers, 2}, [&](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    engine.residuals().keep_rollback(true);
    const KeyId key = declare_one(engine);
    Ledger ledger(engine, key);
    ledger.round(0);
    engine.compression().set(spec("none"), "none");
    const Floats left = engine.residuals().of(key);
    Floats values(kElements, kNan);
    values.front() = 1;
    engine.push_pull(key, values, values, 0).wait();
    engine.residuals().roll_back(std::vector{key});
    EXPECT_EQ(engine.residuals().of(key), left);
    ledger.round_of_zeros();
    ledger.expect_all_delivered("rolled back");
  });
}

TEST_P(Leftovers, WhatIsNotFiniteKeepsItsResidual) {
  GetParam()({kWorkers, 2}, [&](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    const KeyId key = engine.declare(std::vector{KeySpec{"w", {3}}}).front();
    Floats values{0.125F, 0.0625F, 0};
    engine.push_pull(key, values, values, 0).wait();
    engine.compression().set(spec("none"), "none");
    values = {kNan, 1, 0};
    engine.push_pull(key, values, values, 0).wait();
    EXPECT_THAT(values, ElementsAre(testing::IsNan(), kWorkers * 1.0625F, 0));
    values = {0, 0, 0};
    engine.push_pull(key, values, values, 0).wait();
    EXPECT_THAT(values, ElementsAre(kWorkers * 0.125F, 0, 0));
    EXPECT_EQ(engine.residuals().norm(), 0);
  });
}

TEST_P(Leftovers, ALossyCheckpointIsGoneOnFromWithoutCompression) {
  const Folder folder;
  Floats given(kElements), delivered(kElements);
  std::mutex mutex;
  GetParam()({kWorkers, 2}, [&](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "2bit");
    const KeyId key = declare_one(engine);
    for (unsigned step = 0; step < 3; ++step) {
      Floats values = random_floats(kElements, 10 * step + engine.rank());
      engine.push_pull(key, values, values, 0).wait();
      const std::lock_guard lock(mutex);
      if (engine.rank() != 0) continue;
      add(given, rank_order_sum(kElements, 10 * step, engine.num_workers()));
      add(delivered, values);
    }
    engine.checkpoints().save(folder.path());
  });
  GetParam()({kWorkers, 1}, [&](Engine& engine) {
    const KeyId key = declare_one(engine);
    engine.checkpoints().load(folder.path());
    Floats values(kElements);
    engine.push_pull(key, values, values, 0).wait();
    const std::lock_guard lock(mutex);
    if (engine.rank() == 0) add(delivered, values);
  });
  EXPECT_THAT(delivered, Pointwise(FloatNear(2e-4F), given));
}

// ------------------------------------------------------------------------------------- rows

class LeftoverRows : public testing::TestWithParam<Runner> {};
INSTANTIATE_TEST_SUITE_P(All, LeftoverRows, testing::Values(run_job, run_peers),
                         [](const auto& info) { return kNames[info.index]; });

using Ids = std::vector<std::int64_t>;

/// A table of 6 rows of 2, of which ranks push some, and what it has delivered.
class RowLedger {
 public:
  explicit RowLedger(Engine& engine) : rows_(engine.sparse()) {
    table_ = rows_.declare(std::vector{KeySpec{"table", {6, 2}}}).front();
  }
  void round(const Ids& ids, const Floats& values) {
    const auto pulled = rows_.push_pull(table_, ids, values, 0);
    pulled.done.wait();
    last = rows_.rows_of(pulled);
    for (std::size_t i = 0; i < last.ids.size(); ++i) {
      for (std::size_t e = 0; e < 2; ++e) delivered[last.ids[i]][e] += last.values[2 * i + e];
    }
  }
  TableId table() const { return table_; }

  std::map<std::uint64_t, std::array<float, 2>> delivered;
  Rows last;

 private:
  SparseRows& rows_;
  TableId table_ = 0;
};

TEST_P(LeftoverRows, NoneSendsWhatIsLeftOfAllRows) {
  GetParam()({2, 2}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    RowLedger ledger(engine);
    ledger.round({1, 4}, {3, 0.25F, 0, 0});
    ledger.round({5}, {0.125F, 0});
    EXPECT_THAT(ledger.delivered[1], ElementsAre(1, 0));
    engine.compression().set(spec("none"), "none");
    ledger.round({2}, {7, 7});
    EXPECT_THAT(ledger.last.ids, ElementsAre(1, 2, 5)) << "and not 4, of which nothing is left";
    EXPECT_THAT(ledger.delivered[1], ElementsAre(6, 0.5F));
    EXPECT_THAT(ledger.delivered[2], ElementsAre(14, 14));
    EXPECT_THAT(ledger.delivered[5], ElementsAre(0.25F, 0));
    EXPECT_EQ(engine.residuals().norm(), 0);
  });
}

TEST_P(LeftoverRows, AReplyWithoutLossHasWhatRepliesBeforeHaveLeft) {
  GetParam()({2, 2}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "2bit");
    RowLedger ledger(engine);
    ledger.round({1, 3}, {0.5F, 0, 0.5F, 0.5F});
    ledger.round({1}, {0.5F, 0});
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    ledger.round({3}, {0.5F, 0});
    EXPECT_THAT(ledger.delivered[1], ElementsAre(2, 0));
    EXPECT_THAT(ledger.delivered[3], ElementsAre(2, 1));
    ledger.round({3}, {0.5F, 0});
    EXPECT_THAT(ledger.last.ids, ElementsAre(3));
  });
}

TEST_P(LeftoverRows, ARoundOfRowsThatIsRolledBackHasSentNothingOfThem) {
  GetParam()({2, 2}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "exact");
    engine.sparse().keep_rollback(true);
    RowLedger ledger(engine);
    ledger.round({1}, {0.25F, 0});
    engine.compression().set(spec("none"), "none");
    ledger.round({2}, {1, kNan});
    engine.sparse().roll_back(std::vector{ledger.table()});
    const Rows left = engine.sparse().residual(ledger.table());
    EXPECT_THAT(left.ids, ElementsAre(1));
    EXPECT_THAT(left.values, ElementsAre(0.25F, 0));
  });
}

TEST_P(LeftoverRows, AnOptimizerThatComesLaterGetsWhatIsLeftOfRows) {
  GetParam()({2, 2}, [](Engine& engine) {
    engine.compression().set(spec("2bit:threshold=0.5"), "2bit");
    RowLedger ledger(engine);
    ledger.round({1, 3}, {0.5F, 0, 0.5F, 0});
    const auto sent = ledger.delivered;
    engine.set_optimizer("test");
    ledger.delivered.clear();
    ledger.round({2}, {0.5F, 0});
    for (const std::uint64_t row : {1, 3}) {  // the weights began with what was sent of them
      EXPECT_THAT(std::max(sent.at(row)[0], ledger.delivered[row][0]), 1) << row;
    }
    EXPECT_THAT(ledger.delivered[2], ElementsAre(1, 0));
  });
}

}  // namespace
}  // namespace gradwire::kvstore
