// Rows through whole jobs: every placement that has servers, every codec that can send rows, beside an oracle
// that does it row by row.
#include "kvstore/rows/sparse_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "kvstore/rows/sparse_rows.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/placement/hosts.h"
#include "transport/decorators/faulty_messenger.h"

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;
using compress::ReplyKind;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Ids = std::vector<std::int64_t>;
using Values = std::vector<float>;
using Table = std::map<std::uint64_t, Values>;

constexpr std::uint64_t kRows = 101;
constexpr std::uint32_t kWidth = 37;

struct Given {
  Ids ids;
  Values values;
};

/// What a rank pushes in a step: some rows, in no order, some of them twice, and now and then none.
Given given(std::uint32_t rank, std::uint64_t step) {
  std::mt19937 random(static_cast<unsigned>(1000 * step + rank));
  Given rows;
  if (random() % 5 == 0) return rows;
  for (std::size_t i = 1 + random() % 30; i > 0; --i) {
    rows.ids.push_back(static_cast<std::int64_t>(random() % kRows));
    for (std::uint32_t e = 0; e < kWidth; ++e)
      rows.values.push_back(static_cast<float>(random() % 2001) / 1000 - 1);
  }
  return rows;
}

/// Sums by one codec, as a round of each row by itself would.
class Oracle {
 public:
  Oracle(const std::string& spec, const std::string& reply, std::uint32_t workers, TableId table)
      : codec_(compress::make(compress::parse_spec(spec))),
        reply_(compress::reply_kind(*codec_, reply)),
        workers_(workers),
        table_(table),
        residuals_(workers) {}

  Table step(std::uint64_t step) {
    std::map<std::uint64_t, std::vector<std::vector<std::byte>>> payloads;
    for (std::uint32_t rank = 0; rank < workers_; ++rank) {
      const Given mine = given(rank, step);
      Table sums;
      for (std::size_t i = 0; i < mine.ids.size(); ++i) {
        Values& row = sums.try_emplace(static_cast<std::uint64_t>(mine.ids[i]), kWidth).first->second;
        for (std::uint32_t e = 0; e < kWidth; ++e) row[e] += mine.values[i * kWidth + e];
      }
      for (const auto& [id, row] : sums) {
        std::vector<std::byte> out(codec_->max_encoded_size(kWidth));
        codec_->encode(row, residual_of(residuals_[rank], id), {}, out,
                       row_position(table_, rank, step, id, kWidth));
        payloads[id].push_back(out);
      }
    }
    Table result;
    for (const auto& [id, sent] : payloads) {
      const std::vector<compress::Payload> views(sent.begin(), sent.end());
      std::vector<std::byte> reply(codec_->max_reply_size(kWidth, sent.size(), reply_));
      const bool keeps = reply_ == ReplyKind::kSame;
      codec_->encode_reply(views, kWidth, reply_, keeps ? residual_of(server_, id) : std::span<float>(),
                           reply);
      codec_->decode_reply(reply, sent.size(), reply_, result.try_emplace(id, kWidth).first->second, {});
    }
    return result;
  }

  const Table& residual(std::uint32_t rank) const { return residuals_[rank]; }

 private:
  std::span<float> residual_of(Table& residuals, std::uint64_t id) const {
    if (!codec_->lossy()) return {};
    return residuals.try_emplace(id, kWidth).first->second;
  }

  std::unique_ptr<compress::Codec> codec_;
  ReplyKind reply_;
  std::uint32_t workers_;
  TableId table_;
  std::vector<Table> residuals_;
  Table server_;
};

Table as_table(const Rows& rows, std::size_t width = kWidth) {
  Table table;
  for (std::size_t i = 0; i < rows.ids.size(); ++i) {
    const auto row = rows.row(i, width);
    table[rows.ids[i]] = Values(row.begin(), row.end());
  }
  return table;
}

Table wait_for(Engine& engine, const PulledRows& pulled, std::size_t width = kWidth) {
  pulled.done.wait();
  return as_table(engine.sparse().rows_of(pulled), width);
}

KeySpec embedding(std::uint64_t rows = kRows, std::uint64_t width = kWidth) {
  return {"embedding", {rows, width}};
}

using Runner = void (*)(const JobSize&, const std::function<void(Engine&)>&);

struct Placement {
  const char* name;
  Runner run;
  JobSize size;
};

class EveryRowPlacement : public testing::TestWithParam<Placement> {
 protected:
  void run(const std::function<void(Engine&)>& body) {
    JobSize size = GetParam().size;
    size.engine.shard_bound_elements = 1000;  // so that the table is spread
    GetParam().run(size, [&](Engine& engine) {
      body(engine);
      engine.close();
      EXPECT_TRUE(engine.outlast_for(20s));  // a peer's rows may still be asked for
    });
  }
  std::uint32_t workers() const { return GetParam().size.workers; }
};

TEST_P(EveryRowPlacement, EveryCodecSumsRowsAsItWouldEachAlone) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"none", "fp32"},
      {"fp16", "fp16"},
      {"fp16", "fp32"},
      {"bf16", "bf16"},
      {"int8:block=32", "int8"},
      {"int4", "int4"},
      {"fp8", "fp8"},
      {"1bit", "1bit"},
      {"topk:ratio=0.1", "topk"},
      {"qsgd", "qsgd"},
      {"terngrad", "terngrad"},
      {"natural", "natural"},
      {"randomk:ratio=0.2", "randomk"},
      {"2bit:threshold=0.5", "exact"},
      {"2bit:threshold=0.5", "2bit"},
      {"2bit:threshold=0.5", "fp32"},
      {"1bit:threshold=0.5", "exact"},
      {"2bit:threshold=0.5,lossless=on", "exact"}};
  for (const auto& [spec, reply] : cases) {
    run([&](Engine& engine) {
      engine.compression().set(compress::parse_spec(spec), reply);
      const auto tables = engine.sparse().declare(std::vector{embedding()});
      engine.sparse().init(tables[0], {}, {}, 0);
      Oracle oracle(spec, reply, workers(), tables[0]);
      for (std::uint64_t step = 0; step < 8; ++step) {
        const Given mine = given(engine.rank(), step);
        const Table expected = oracle.step(step);
        const Table sums = wait_for(engine, engine.sparse().push_pull(tables[0], mine.ids, mine.values, 0));
        ASSERT_EQ(sums, expected) << spec << " " << reply << " step " << step;
        ASSERT_EQ(as_table(engine.sparse().residual(tables[0])), oracle.residual(engine.rank())) << spec;
      }
    });
  }
}

TEST_P(EveryRowPlacement, PushesAndPullsOfSomeRowsGiveTheSame) {
  run([&](Engine& engine) {
    const auto tables = engine.sparse().declare(std::vector{embedding()});
    const Values first(3 * kWidth, 2.5F);
    engine.sparse().init(tables[0], Ids{5, 100, 0}, engine.rank() == 0 ? first : Values(3 * kWidth), 0);
    const Values row(kWidth, 2.5F);
    EXPECT_EQ(wait_for(engine, engine.sparse().pull(tables[0], Ids{100, 3, 5, 100}, 0)),
              (Table{{5, row}, {100, row}}));
    Oracle oracle("none", "fp32", workers(), tables[0]);
    for (std::uint64_t step = 0; step < 6; ++step) {
      const Given mine = given(engine.rank(), step);
      engine.sparse().push(tables[0], mine.ids, mine.values, -1);
      Table expected = oracle.step(step);
      std::erase_if(expected, [](const auto& entry) { return entry.first % 3 != 0; });
      Ids asked;
      for (std::int64_t id = 0; id < static_cast<std::int64_t>(kRows); id += 3) asked.push_back(id);
      ASSERT_EQ(wait_for(engine, engine.sparse().pull(tables[0], asked, 0)), expected) << step;
    }
  });
}

TEST_P(EveryRowPlacement, AnOptimizerUpdatesTouchedRows) {
  run([&](Engine& engine) {
    engine.compression().set(compress::parse_spec("fp16"), "fp16");
    const auto tables = engine.sparse().declare(std::vector{embedding(8, 2)});
    engine.sparse().init(tables[0], Ids{0, 1, 2}, Values{1, 1, 2, 2, 3, 3}, 0);
    engine.set_optimizer("sgd learning_rate=0.5 wd=0.5");
    const float sum = static_cast<float>(workers() * (workers() + 1) / 2);
    const auto mine = static_cast<float>(engine.rank() + 1);
    const Table touched =
        wait_for(engine, engine.sparse().push_pull(tables[0], Ids{1, 7}, Values{mine, 0, mine, 0}, 0), 2);
    EXPECT_EQ(touched, (Table{{1, {2 - 0.5F * (sum + 1), 1.5F}}, {7, {-0.5F * sum, 0}}}));
    EXPECT_EQ(wait_for(engine, engine.sparse().pull(tables[0], Ids{0, 7, 3}, 0), 2),
              (Table{{0, {1, 1}}, {7, {-0.5F * sum, 0}}}));  // no decay of row 0
  });
}

TEST_P(EveryRowPlacement, BytesGrowWithTheRowsAndNotWithTheTable) {
  std::mutex mutex;
  std::map<std::uint64_t, std::uint64_t> bytes;  // by rows of the table
  for (const std::uint64_t rows : {std::uint64_t{1000}, std::uint64_t{1} << 40}) {
    run([&](Engine& engine) {
      engine.compression().set(compress::parse_spec("fp16"), "fp16");
      const auto tables = engine.sparse().declare(std::vector{embedding(rows, 64)});
      engine.sparse().init(tables[0], {}, {}, 0);
      Ids ids(20);
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(7 * i);
      const Values values(20 * 64, 1);
      engine.sparse().push_pull(tables[0], ids, values, 0).done.wait();
      const PushedBytes pushed = engine.metrics().pushed();
      EXPECT_EQ(pushed.raw, 20 * 64 * 4U);
      EXPECT_LE(pushed.encoded, 20 * (2 * 64 + 1) + 16 * engine.num_servers());
      const std::lock_guard lock(mutex);
      bytes[rows] += pushed.encoded;
    });
  }
  EXPECT_EQ(bytes.begin()->second, bytes.rbegin()->second);
}

TEST_P(EveryRowPlacement, TablesArePlacedBesideKeysAndByTheSameRule) {
  run([&](Engine& engine) {
    engine.declare(std::vector<KeySpec>{{"dense", {70}}});
    const std::vector<KeySpec> specs = {{"b", {4, 2}}, {"a", {3, 2}}};
    const auto tables = engine.sparse().declare(specs);
    EXPECT_THAT(tables, ElementsAre(1, 0));  // in the order of names
    engine.sparse().init(tables[0], Ids{3}, Values{1, 2}, engine.num_workers() - 1);
    engine.sparse().init(tables[1], Ids{1}, Values{5, 6}, 0);
    EXPECT_EQ(wait_for(engine, engine.sparse().pull(tables[0], Ids{3}, 0), 2), (Table{{3, {1, 2}}}));
    EXPECT_THAT(wait_for(engine, engine.sparse().pull(tables[1], Ids{2}, 0), 2), IsEmpty());
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, EveryRowPlacement,
    testing::Values(Placement{"two_workers_two_servers", run_job, {2, 2, 1, {}}},
                    Placement{"three_workers_one_server", run_job, {3, 1, 1, {}}},
                    Placement{"one_worker_three_servers", run_job, {1, 3, 1, {}}},
                    Placement{"three_workers_two_servers_of_two_threads", run_job, {3, 2, 2, {}}},
                    Placement{"two_peers", run_peers, {2, 2, 1, {}}},
                    Placement{"three_peers", run_peers, {3, 3, 1, {}}}),
    [](const auto& info) { return std::string(info.param.name); });

JobSize spread() {
  JobSize size{2, 2, 1, {}};
  size.engine.shard_bound_elements = 1;
  return size;
}

TEST(SparseRows, MisuseIsNamedAndCostsNoRound) {
  run_job(spread(), [](Engine& engine) {
    SparseRows& sparse = engine.sparse();
    const auto refusal = [&](const auto& call) -> std::string {
      try {
        call();
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      return "accepted";
    };
    const auto table = sparse.declare(std::vector{embedding(4, 2)})[0];
    sparse.init(table, {}, {}, 0);
    EXPECT_THAT(refusal([&] {
                  sparse.push(table, Ids{0, 4}, Values(4), 0);
                }),
                HasSubstr("row_ids[1] is 4, outside a table of 4 rows; expected 0 to 3"));
    EXPECT_THAT(refusal([&] { sparse.push(table, Ids{0}, Values(3), 0); }), HasSubstr("3 values given"));
    EXPECT_THAT(refusal([&] { sparse.pull(table, Ids{-2}, 0); }), HasSubstr("row_ids[0] is -2"));
    EXPECT_THAT(refusal([&] { sparse.push(table + 1, Ids{0}, Values(2), 0); }),
                HasSubstr("was not declared"));
    EXPECT_THAT(refusal([&] { sparse.declare(std::vector{embedding(4, 2)}); }), HasSubstr("declared before"));
    EXPECT_THAT(refusal([&] {
                  sparse.declare(std::vector{KeySpec{"x", {0, 3}}});
                }),
                HasSubstr("has no element"));
    EXPECT_THAT(refusal([&] {
                  sparse.declare(std::vector{KeySpec{"y", {4, engine.rank() + 1}}});
                }),
                HasSubstr("keys differ: worker 0 has 'y'"));
    const auto sums = wait_for(engine, sparse.push_pull(table, Ids{1}, Values{1, 2}, 0), 2);
    EXPECT_EQ(sums, (Table{{1, {2, 4}}}));
  });
}

TEST(SparseRows, ATableMayHaveACodecOfItsOwn) {
  run_job(spread(), [](Engine& engine) {
    const auto table = engine.sparse().declare(std::vector{embedding()})[0];
    engine.sparse().init(table, {}, {}, 0);
    const std::uint64_t tables[] = {table};
    engine.compression().set_of_tables(tables, compress::parse_spec("2bit:threshold=0.5"), "exact");
    engine.compression().set(compress::parse_spec("fp16"), "fp16");
    Oracle oracle("2bit:threshold=0.5", "exact", 2, table);
    const Given mine = given(engine.rank(), 0);
    const Table expected = oracle.step(0);
    EXPECT_EQ(wait_for(engine, engine.sparse().push_pull(table, mine.ids, mine.values, 0)), expected);
  });
}

TEST(SparseRows, RowsOfACodecThatAgreesScalesTravelAsTheyAre) {
  run_job(spread(), [](Engine& engine) {
    engine.compression().set(compress::parse_spec("2bit:threshold=auto"), "exact");
    const auto table = engine.sparse().declare(std::vector{embedding()})[0];
    engine.sparse().init(table, {}, {}, 0);
    Oracle oracle("none", "fp32", 2, table);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const Given mine = given(engine.rank(), step);
      EXPECT_EQ(wait_for(engine, engine.sparse().push_pull(table, mine.ids, mine.values, 0)),
                oracle.step(step));
    }
    EXPECT_THAT(engine.metrics().take_notices(),
                ElementsAre(HasSubstr("rows of 'embedding' travel as float32")));
  });
}

TEST(SparseRows, AVetoedStepIsRolledBack) {
  run_job(spread(), [](Engine& engine) {
    engine.compression().set(compress::parse_spec("2bit:threshold=0.5"), "exact");
    const auto table = engine.sparse().declare(std::vector{embedding(6, 2)})[0];
    engine.sparse().init(table, {}, {}, 0);
    engine.sparse().keep_rollback(true);
    const auto push = [&](const Ids& ids, float value) {
      engine.sparse().push_pull(table, ids, Values(2 * ids.size(), value), 0).done.wait();
    };
    push({1, 2}, 0.3F);
    const Table before = as_table(engine.sparse().residual(table), 2);
    push({2, 3}, 0.1F);
    const std::uint64_t tables[] = {table};
    engine.sparse().roll_back(tables);
    Table after = as_table(engine.sparse().residual(table), 2);
    EXPECT_EQ(after[3], (Values{0, 0}));
    after.erase(3);
    EXPECT_EQ(after, before);
  });
}

TEST(SparseRows, NonfiniteValuesAreTold) {
  run_job(spread(), [](Engine& engine) {
    engine.compression().set(compress::parse_spec("fp16"), "fp16");
    const auto table = engine.sparse().declare(std::vector{embedding(6, 2)})[0];
    engine.sparse().init(table, {}, {}, 0);
    const float bad = engine.rank() == 1 ? std::numeric_limits<float>::infinity() : 1;
    const PulledRows pulled = engine.sparse().push_pull(table, Ids{1}, Values{bad, 1}, 0);
    const auto sums = wait_for(engine, pulled, 2);
    EXPECT_TRUE(pulled.done.nonfinite());
    const PulledRows next = engine.sparse().push_pull(table, Ids{1}, Values{1, 1}, 0);
    wait_for(engine, next, 2);
    EXPECT_FALSE(next.done.nonfinite());
    EXPECT_EQ(sums, (Table{{1, {1, 2}}}));
  });
}

TEST(SparseRows, WhatIsLostOrDamagedIsSentAgain) {
  const auto faults = std::make_shared<transport::Faults>(
      transport::parse_faults("drop=10%,duplicate=5%,reorder=5%,corrupt=5%"));
  JobSize size = spread();
  size.engine.retry_timeout = 20ms;
  run_wired(
      size,
      [](Engine& engine) {
        const auto table = engine.sparse().declare(std::vector{embedding()})[0];
        engine.sparse().init(table, {}, {}, 0);
        Oracle oracle("none", "fp32", 2, table);
        for (std::uint64_t step = 0; step < 10; ++step) {
          const Given mine = given(engine.rank(), step);
          ASSERT_EQ(wait_for(engine, engine.sparse().push_pull(table, mine.ids, mine.values, 0)),
                    oracle.step(step));
        }
        engine.barrier();
      },
      [&](Line line) { return transport::disturbed(std::move(line), faults); });
  EXPECT_GT(faults->counts().of(transport::Fault::kDropped), 0U);
  EXPECT_GT(faults->counts().of(transport::Fault::kCorrupted), 0U);
}

TEST(SparseRows, AWorkerThatLeavesIsNamed) {
  std::string text;
  run_job({2, 1, 1, {}}, [&](Engine& engine) {
    const auto table = engine.sparse().declare(std::vector{embedding(6, 2)})[0];
    engine.sparse().init(table, {}, {}, 0);
    if (engine.rank() == 1) return;
    try {
      engine.sparse().push_pull(table, Ids{1}, Values{1, 1}, 0).done.wait();
    } catch (const transport::TransportError& error) {
      text = error.what();
    }
  });
  EXPECT_THAT(text, HasSubstr("worker 1 left the job before step 0"));
}

TEST(SparseRows, WhoIsSlowIsNamed) {
  JobSize size{2, 1, 1, {}};
  size.engine.slow_warning = 1s;
  size.engine.slow_abort = 3s;
  size.engine.retry_timeout = 50ms;
  std::string text;
  std::vector<std::string> notices;
  const auto body = [&](Engine& engine) {
    const auto table = engine.sparse().declare(std::vector{embedding(6, 2)})[0];
    engine.sparse().init(table, {}, {}, 0);
    if (engine.rank() == 1) {
      std::this_thread::sleep_for(4500ms);
      return;
    }
    try {
      engine.sparse().push_pull(table, Ids{1}, Values{1, 1}, 0).done.wait();
    } catch (const transport::TimeoutError& error) {
      text = error.what();
    }
    notices = engine.metrics().take_notices();
  };
  EXPECT_THROW(run_job(size, body), transport::TransportError);  // the servers hear of it
  EXPECT_THAT(text, HasSubstr("rows of 'embedding' have waited 3 s for worker 1"));
  EXPECT_THAT(notices, testing::Contains(HasSubstr("for worker 1")));
}

TEST(SparseRows, AWarningBeforeAnyRetryNamesTheSlowWorker) {
  JobSize size{2, 1, 1, {}};
  size.engine.slow_warning = 2s;
  size.engine.retry_timeout = 100s;
  std::vector<std::string> notices;
  std::promise<void> warned;
  auto is_warned = warned.get_future().share();
  run_job(size, [&](Engine& engine) {
    const auto table = engine.sparse().declare(std::vector{embedding(6, 2)})[0];
    engine.sparse().init(table, {}, {}, 0);
    if (engine.rank() == 1) is_warned.wait_for(std::chrono::seconds(60));
    const Ticket sum = engine.sparse().push_pull(table, Ids{1}, Values{1, 1}, 0).done;
    while (engine.rank() == 0 && notices.empty() && !sum.wait_for(20ms))
      notices = engine.metrics().take_notices();
    if (engine.rank() == 0) warned.set_value();
    sum.wait();
  });
  EXPECT_THAT(notices, testing::ElementsAre(testing::ContainsRegex(
                           "^rows of 'embedding' have waited [0-9]+ s for worker 1$")));
}

// Rows do not go through leaders: every worker pushes its own.
TEST(SparseRows, WhereAHostsWorkersSumFirstRowsAreSummedAllTheSame) {
  run_hosts(spread(), {"a", "a", "b"}, [](Engine& engine) {
    const auto table = engine.sparse().declare(std::vector{embedding()})[0];
    engine.sparse().init(table, {}, {}, 0);
    Oracle oracle("none", "fp32", 3, table);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const Given mine = given(engine.rank(), step);
      EXPECT_EQ(wait_for(engine, engine.sparse().push_pull(table, mine.ids, mine.values, 0)),
                oracle.step(step));
    }
    engine.barrier();
  });
}

TEST(SparseRows, ALibraryThatSumsHasNone) {
  run_native({2, 0, 1, {}}, [](Engine& engine) {
    try {
      engine.sparse();
      ADD_FAILURE() << "accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("sparse rows: they need servers"));
    }
  });
}

TEST(SparseRowsSize, WhatNoMessageHoldsIsRefusedBeforeItChangesAnything) {
  JobSize size{2, 1};
  size.engine.message_bytes = 8'000;
  run_job(size, [](Engine& engine) {
    engine.compression().set(compress::parse_spec("2bit:threshold=0.5"), "fp32");
    const TableId table = engine.sparse().declare(std::vector{embedding()})[0];
    Ids many(kRows);
    std::iota(many.begin(), many.end(), 0);
    const Values values(kRows * kWidth, 0.25F);
    const auto refusal = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const std::invalid_argument& error) {
        return std::string(error.what());
      }
      return std::string("taken");
    };
    EXPECT_THAT(refusal([&] { engine.sparse().push_pull(table, many, values, 0); }),
                HasSubstr("push_pull: 101 rows of 148 bytes of table"));
    EXPECT_THAT(refusal([&] { engine.sparse().pull(table, many, 0); }), HasSubstr("pull: 101 rows"));
    const auto sum = [&] {
      return wait_for(engine, engine.sparse().push_pull(table, Ids{5}, Values(kWidth, 0.25F), 0)).at(5);
    };
    EXPECT_EQ(sum(), Values(kWidth, 0.0F)) << "below the threshold: what was refused has left nothing";
    EXPECT_EQ(sum(), Values(kWidth, 1.0F));
  });
}

}  // namespace
}  // namespace gradwire::kvstore
