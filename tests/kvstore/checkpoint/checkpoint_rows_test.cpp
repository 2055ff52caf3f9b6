// Jobs with tables of rows, saved and gone on from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "kvstore/checkpoint/checkpoint_source.h"
#include "kvstore/rows/sparse_rows.h"
#include "tests/kvstore/folder.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Ids = std::vector<std::int64_t>;
using Values = std::vector<float>;
using Body = std::function<void(Engine&)>;
using Runner = void (*)(const JobSize&, const Body&);

/// One lies on all servers, one on one of them.
const std::vector<KeySpec> kTables = {{"words", {101, 37}}, {"pages", {8, 2}}};

JobSize job(std::uint32_t workers, std::uint32_t servers) {
  JobSize size{workers, servers};
  size.engine.shard_bound_elements = 1000;
  return size;
}

/// In which tables are declared.
enum class Order : std::uint8_t { kForwards, kBackwards };

/// One worker's part of a job, which has a dense key, too.
class Worker {
 public:
  Worker(Engine& engine, const std::string& codec, const std::string& reply, Order order = Order::kForwards)
      : engine_(engine) {
    engine.compression().set(spec(codec), reply);
    key_ = engine.declare(std::vector<KeySpec>{{"w", {70'000}}})[0];
    engine.init(key_, random_floats(70'000, 98));
    tables_.resize(kTables.size());
    for (std::size_t n = 0; n < kTables.size(); ++n) {
      const std::size_t i = order == Order::kBackwards ? kTables.size() - 1 - n : n;
      tables_[i] = engine.sparse().declare({&kTables[i], 1})[0];
    }
  }

  void init() {
    for (std::size_t i = 0; i < kTables.size(); ++i) {
      const std::size_t width = row_shape(kTables[i]).row_elements;
      engine_.sparse().init(tables_[i], Ids{1, 5, 7}, random_floats(3 * width, 99), 0);
    }
  }
  /// Returns what came of all tables and the key.
  Values steps(unsigned first, unsigned end) {
    Values all;
    for (unsigned step = first; step < end; ++step) {
      for (std::size_t i = 0; i < tables_.size(); ++i) push(i, step, all);
      Values dense = random_floats(70'000, 10 * step + engine_.rank());
      engine_.push_pull(key_, dense, dense, 0).wait();
      all.insert(all.end(), dense.begin(), dense.end());
    }
    return all;
  }
  Rows pull(std::size_t table, const Ids& ids) {
    const PulledRows pulled = engine_.sparse().pull(tables_[table], ids, 0);
    pulled.done.wait();
    return engine_.sparse().rows_of(pulled);
  }

 private:
  void push(std::size_t table, unsigned step, Values& all) {
    std::mt19937 random(1000 * step + 10 * engine_.rank() + static_cast<unsigned>(table));
    const RowShape shape = row_shape(kTables[table]);
    Ids ids;
    for (unsigned n = random() % 6; n > 0; --n)  // now and then none
      ids.push_back(static_cast<std::int64_t>(random() % shape.rows));
    const Values values = random_floats(ids.size() * shape.row_elements, random());
    const PulledRows pulled = engine_.sparse().push_pull(tables_[table], ids, values, 0);
    pulled.done.wait();
    const Rows rows = engine_.sparse().rows_of(pulled);
    for (const std::uint64_t id : rows.ids) all.push_back(static_cast<float>(id));
    all.insert(all.end(), rows.values.begin(), rows.values.end());
  }

  Engine& engine_;
  KeyId key_ = 0;
  std::vector<TableId> tables_;
};

void run_on_hosts(const JobSize& size, const Body& body) {
  run_hosts(size, Identities(size.workers, "x"), body);
}

struct Case {
  const char* name;
  Runner run;
  const char* codec;
  const char* reply;
  const char* optimizer;
};
constexpr Case kCases[] = {
    {"SumsOfFloats", run_job, "none", "none", ""},
    {"SumsOfTopK", run_job, "topk", "topk", ""},
    {"SumsOfTwoBitsOfPeers", run_peers, "2bit:threshold=0.25", "2bit", ""},
    {"SumsOfRandomDraws", run_job, "randomk:ratio=0.1", "randomk", ""},
    {"SumsOnAHost", run_on_hosts, "none", "none", ""},
    {"AdamOfTopK", run_job, "topk", "fp32", "adam learning_rate=0.1"},
    {"MomentumOfPeers", run_peers, "fp16", "fp32", "sgd momentum=0.9"},
};
class ResumedRows : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, ResumedRows, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(ResumedRows, GiveTheBitsOfAJobThatNeverStopped) {
  const Folder folder;
  const Case& test = GetParam();
  Values undisturbed, resumed;
  test.run(job(3, 2), [&](Engine& engine) {
    Worker worker(engine, test.codec, test.reply);
    worker.init();
    if (*test.optimizer != '\0') engine.set_optimizer(test.optimizer);
    worker.steps(0, 3);
    engine.checkpoints().save(folder.path());
    const Values sums = worker.steps(3, 6);
    if (engine.rank() == 0) undisturbed = sums;
  });
  for (const std::uint32_t servers : {2U, 3U}) {
    test.run(job(3, servers), [&](Engine& engine) {
      Worker worker(engine, test.codec, test.reply);
      worker.init();
      EXPECT_EQ(engine.checkpoints().load(folder.path()).optimizer, test.optimizer);
      const Values sums = worker.steps(3, 6);
      if (engine.rank() == 0) resumed = sums;
    });
    EXPECT_EQ(resumed, undisturbed) << servers << " servers";
  }
}

// ------------------------------------------------------------------------------------- another shape

/// What all workers, or all servers, owe of each row.
using Owed = std::map<std::pair<std::string, std::uint64_t>, std::vector<double>>;

Owed owed_in(const std::string& folder, RecordKind kind) {
  const auto path = manifest_path(folder);
  const Manifest manifest = read_manifest(contents(path), path);
  Owed owed;
  for (const Manifest::File& file : manifest.files) {
    const CheckpointReader reader(std::filesystem::path(folder) / file.name);
    for (const auto& record : reader.records()) {
      if (record.name.kind != kind) continue;
      const KeySpec& table = manifest.tables[record.name.tensor];
      const Rows rows = decode_row_state(reader.read(record), row_shape(table)).residuals;
      for (std::size_t i = 0; i < rows.ids.size(); ++i) {
        auto& sums = owed[{table.name, rows.ids[i]}];
        const auto row = rows.row(i, row_shape(table).row_elements);
        sums.resize(row.size());
        for (std::size_t e = 0; e < row.size(); ++e) sums[e] += row[e];
      }
    }
  }
  return owed;
}

TEST(ReshapedRows, GoByTheNamesOfTheirTables) {
  const Folder folder;
  Values undisturbed, resumed;
  run_job(job(2, 2), [&](Engine& engine) {
    Worker worker(engine, "topk", "topk");
    worker.steps(0, 2);
    engine.checkpoints().save(folder.path());
    const Values sums = worker.steps(2, 4);
    if (engine.rank() == 0) undisturbed = sums;
  });
  run_job(job(2, 2), [&](Engine& engine) {
    Worker worker(engine, "topk", "topk", Order::kBackwards);
    engine.checkpoints().load(folder.path());
    const Values sums = worker.steps(2, 4);
    if (engine.rank() == 0) resumed = sums;
  });
  EXPECT_EQ(resumed, undisturbed);
}

TEST(ReshapedRows, LoseNoResidual) {
  const Folder before, after;
  run_job(job(4, 2), [&](Engine& engine) {
    Worker worker(engine, "topk", "topk");
    worker.steps(0, 4);
    engine.checkpoints().save(before.path());
  });
  for (const JobSize& size : {job(3, 3), job(6, 1), job(1, 2)}) {
    run_job(size, [&](Engine& engine) {
      Worker worker(engine, "topk", "topk");
      engine.checkpoints().load(before.path());
      engine.checkpoints().save(after.path());
      for (const float sum : worker.steps(4, 6)) ASSERT_TRUE(std::isfinite(sum));
    });
    EXPECT_TRUE(owed_in(after.path(), RecordKind::kServerRows) ==
                owed_in(before.path(), RecordKind::kServerRows))
        << "moved, never added";
    const Owed was = owed_in(before.path(), RecordKind::kWorkerRows);
    const Owed is = owed_in(after.path(), RecordKind::kWorkerRows);
    ASSERT_EQ(is.size(), was.size());
    EXPECT_FALSE(was.empty());
    for (const auto& [row, sums] : was) {
      for (std::size_t e = 0; e < sums.size();
           ++e)  // a rounding of float32 for each addition, of values below 8
        ASSERT_NEAR(is.at(row)[e], sums[e], 3 * 8 * 0x1p-24) << row.first << " " << row.second;
    }
  }
}

// ------------------------------------------------------------------------------------- what goes wrong

void save_one(const std::string& folder) {
  run_job(job(2, 2), [&](Engine& engine) {
    Worker worker(engine, "topk", "topk");
    worker.steps(0, 2);
    engine.checkpoints().save(folder);
  });
}

/// Loads, which must fail on all ranks with nothing changed: the job goes on.
template <typename Error>
void expect_refused(const std::string& folder, const std::string& text) {
  run_job(job(2, 1), [&](Engine& engine) {
    Worker worker(engine, "none", "none");
    EXPECT_THAT([&] { engine.checkpoints().load(folder); }, ThrowsMessage<Error>(HasSubstr(text)));
    worker.steps(0, 1);
  });
}

TEST(CheckpointOfRows, DamageIsFoundBeforeAnythingHasChanged) {
  const Folder folder;
  save_one(folder.path());
  for (const std::string& name : {file_name(1, 0), file_name(1, 1), std::string("checkpoint.manifest")}) {
    const std::string good = contents(folder / name);
    for (const std::size_t at : {good.size() / 2, good.size() - good.size() / 9}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x40);
      overwrite(folder / name, bad);
      expect_refused<compress::DecodeError>(folder.path(), folder / name);
    }
    overwrite(folder / name, good.substr(0, good.size() / 2));
    expect_refused<compress::DecodeError>(folder.path(), folder / name);
    overwrite(folder / name, good);
  }
}

TEST(CheckpointOfRows, BelongsToItsTables) {
  const Folder folder;
  save_one(folder.path());
  run_job(job(1, 1), [&](Engine& engine) {
    engine.declare(std::vector<KeySpec>{{"w", {70'000}}});
    const auto refused = [&](const std::string& text) {
      EXPECT_THAT([&] { engine.checkpoints().load(folder.path()); },
                  ThrowsMessage<std::invalid_argument>(HasSubstr(text)));
    };
    refused("the checkpoint has table 'words' float32 (101, 37), this job does not");
    engine.sparse().declare(std::vector<KeySpec>{{"pages", {8, 2}}, {"words", {102, 37}}});
    refused("has table 'words' float32 (101, 37), this job has 'words' float32 (102, 37)");
  });
}

TEST(CheckpointOfRows, IsLoadedBeforeTheFirstRound) {
  const Folder folder;
  save_one(folder.path());
  run_job(job(1, 1), [&](Engine& engine) {
    Worker worker(engine, "none", "none");
    engine.sparse().push(0, Ids{}, Values{}, 0).wait();
    EXPECT_THAT([&] { engine.checkpoints().load(folder.path()); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("has pushed already")));
  });
}

TEST(CheckpointOfRows, OfSumsIsNotPulledBeforeTheFirstPush) {
  const Folder folder;
  save_one(folder.path());
  run_job(job(1, 1), [&](Engine& engine) {
    Worker worker(engine, "none", "none");
    engine.checkpoints().load(folder.path());
    EXPECT_THAT([&] { worker.pull(0, {3}); },
                ThrowsMessage<transport::TransportError>(HasSubstr("pull after a push of your own")));
    worker.steps(2, 3);
  });
}

}  // namespace
}  // namespace gradwire::kvstore
