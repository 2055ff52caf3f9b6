// What an optimizer remembers of weights goes on, beside weights that went another way, in jobs of any shape.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "kvstore/aggregate/partition_state.h"
#include "kvstore/checkpoint/optimizer_file.h"
#include "kvstore/engine/engine.h"
#include "kvstore/rows/sparse_rows.h"
#include "tests/kvstore/folder.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Body = std::function<void(Engine&)>;
using Runner = void (*)(const JobSize&, const Body&);
using Weights = std::vector<std::vector<float>>;  // by key

/// The first is cut over all servers.
const std::vector<KeySpec> kKeys = {{"w", {200'000}}, {"b", {7}}};
constexpr const char* kAdam = "adam learning_rate=0.25 wd=0.125";

JobSize job(std::uint32_t workers, std::uint32_t servers) {
  JobSize size{workers, servers};
  size.engine.shard_bound_elements = 100'000;
  return size;
}

void run_on_hosts(const JobSize& size, const Body& body) { run_hosts(size, {"x", "x", "y", "y"}, body); }

Weights first_weights() {
  Weights weights;
  for (const KeySpec& key : kKeys) weights.push_back(random_floats(key.elements(), 99));
  return weights;
}

/// One worker's part of a job with weights on its servers.
class Worker {
 public:
  Worker(Engine& engine, const Weights& weights, const char* optimizer) : engine_(engine) {
    keys_ = engine.declare(kKeys);
    for (std::size_t k = 0; k < keys_.size(); ++k) engine.init(keys_[k], weights[k]);
    engine.set_optimizer(optimizer);
  }

  /// Returns the weights after the last of them.
  Weights steps(unsigned first, unsigned end) {
    Weights weights(keys_.size());
    for (unsigned number = first; number < end; ++number) {
      for (std::size_t k = 0; k < keys_.size(); ++k) {
        weights[k] = random_floats(kKeys[k].elements(), 10 * number + engine_.rank());
        engine_.push_pull(keys_[k], weights[k], weights[k], 0).wait();
      }
    }
    return weights;
  }

  const std::vector<KeyId>& keys() const { return keys_; }

 private:
  Engine& engine_;
  std::vector<KeyId> keys_;
};

/// A file of the states after three steps, the weights then, and those of three steps more.
struct Saved {
  Weights at, undisturbed;
};

/// Rank 0 saves by itself: meanwhile the others go on, and their pushes wait for its own.
Saved save(const std::string& path, Runner run = run_job, const JobSize& size = job(4, 2),
           const char* optimizer = kAdam, Dump dump = Dump::kStates) {
  Saved saved;
  run(size, [&](Engine& engine) {
    Worker worker(engine, first_weights(), optimizer);
    const Weights at = worker.steps(0, 3);
    if (engine.rank() == 0) engine.optimizer_states().save(path, dump);
    const Weights after = worker.steps(3, 6);
    if (engine.rank() == 0) saved = {at, after};
  });
  return saved;
}

/// The weights after three steps more, of a job that begins with those that were saved.
Weights resume(const std::string& path, const Saved& saved, Runner run = run_job,
               const JobSize& size = job(4, 2), const char* optimizer = kAdam) {
  Weights resumed;
  run(size, [&](Engine& engine) {
    Worker worker(engine, saved.at, optimizer);
    EXPECT_EQ(engine.optimizer_states().load(path), "");
    const Weights weights = worker.steps(3, 6);
    if (engine.rank() == 0) resumed = weights;
  });
  return resumed;
}

class StatesOfOptimizers : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, StatesOfOptimizers,
                         testing::Values("test", "sgd", "sgd momentum=0.9", "adam", "adamw wd=0.1",
                                         "adagrad"));

TEST_P(StatesOfOptimizers, GoOnAsInAJobThatNeverStopped) {
  const Folder folder;
  const Saved saved = save(folder / "a", run_job, job(4, 2), GetParam());
  for (const std::uint32_t servers : {2U, 3U, 1U}) {
    EXPECT_EQ(resume(folder / "a", saved, run_job, job(4, servers), GetParam()), saved.undisturbed)
        << servers;
  }
}

struct Placement {
  const char* name;
  Runner run;
};

class StatesOfPlacements : public testing::TestWithParam<Placement> {};
INSTANTIATE_TEST_SUITE_P(All, StatesOfPlacements,
                         testing::Values(Placement{"Peers", run_peers}, Placement{"Native", run_native},
                                         Placement{"Hosts", run_on_hosts}),
                         [](const auto& info) { return info.param.name; });

TEST_P(StatesOfPlacements, GoOnAsInAJobThatNeverStopped) {
  const Folder folder;
  const Saved saved = save(folder / "a", GetParam().run);
  EXPECT_EQ(resume(folder / "a", saved, GetParam().run), saved.undisturbed);
}

TEST_P(StatesOfPlacements, AreThoseThatServersHad) {
  const Folder folder;
  const Saved saved = save(folder / "a");
  GetParam().run(job(4, 3), [&](Engine& engine) {
    Worker worker(engine, saved.at, kAdam);
    engine.optimizer_states().load(folder / "a");
    if (engine.rank() == 0) engine.optimizer_states().save(folder / "b", Dump::kStates);
    worker.steps(3, 4);
  });
  const OptimizerFile a(folder / "a"), b(folder / "b");
  ASSERT_EQ(a.head(), b.head());
  for (std::uint64_t key = 0; key < kKeys.size(); ++key) {
    const std::uint64_t elements = a.head().keys[key].spec.elements();
    EXPECT_EQ(a.state(key, 0, elements).moments.size(), 2 * elements);
    EXPECT_EQ(a.state(key, 0, elements), b.state(key, 0, elements));
  }
}

TEST(OptimizerStates, GoOnWherePushesAreAppliedAtOnce) {
  const Folder folder;
  JobSize size = job(1, 2);  // of one worker, whose pushes have an order
  size.engine.async = AsyncPolicy{};
  const Saved saved = save(folder / "a", run_job, size);
  EXPECT_EQ(resume(folder / "a", saved, run_job, size), saved.undisturbed);
}

TEST(OptimizerStates, MayBeSavedByAllRanksAndLoadedAgain) {
  const Folder folder;
  run_job(job(3, 2), [&](Engine& engine) {
    Worker worker(engine, first_weights(), kAdam);
    worker.steps(0, 2);
    engine.optimizer_states().save(folder / "a", Dump::kStates);
    for (int time = 0; time < 2; ++time) {
      worker.steps(2, 4);
      engine.optimizer_states().load(folder / "a");
      if (engine.rank() == 1) engine.optimizer_states().save(folder / "b", Dump::kStates);
      engine.barrier();
      EXPECT_EQ(contents(folder / "b"), contents(folder / "a"));
      engine.barrier();
    }
  });
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    left.push_back(entry.path().filename());
  EXPECT_THAT(left, testing::UnorderedElementsAre("a", "b"));
}

TEST(OptimizerStates, BringTheirParametersIfTheyWereGivenThem) {
  const Folder folder;
  const Saved saved = save(folder / "a", run_job, job(2, 2), kAdam, Dump::kStatesAndParameters);
  run_job(job(2, 1), [&](Engine& engine) {
    Worker worker(engine, saved.at, "sgd learning_rate=0.5");
    EXPECT_EQ(engine.optimizer_states().load(folder / "a"), kAdam);
    EXPECT_EQ(worker.steps(3, 6), saved.undisturbed);
  });
}

// ------------------------------------------------------------------------------------- what goes wrong

/// Loads, which must fail as `matches` says, on all ranks alike and with nothing changed.
template <typename Error, typename Matcher>
void expect_refused(const std::string& path, const char* optimizer, const Matcher& matches) {
  std::mutex mutex;
  std::vector<std::string> texts;
  Weights disturbed, undisturbed;
  const auto run = [&](bool loads, Weights& weights) {
    run_job(job(2, 1), [&](Engine& engine) {
      Worker worker(engine, first_weights(), optimizer);
      worker.steps(0, 1);
      try {
        if (loads) engine.optimizer_states().load(path);
      } catch (const Error& error) {
        const std::lock_guard lock(mutex);
        texts.emplace_back(error.what());
      }
      const Weights found = worker.steps(1, 2);
      if (engine.rank() == 0) weights = found;
    });
  };
  run(true, disturbed);
  run(false, undisturbed);
  EXPECT_EQ(disturbed, undisturbed);
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_THAT(texts[0], matches);
}

TEST(OptimizerStates, OfADamagedOrForeignFileAreRefusedBeforeAnythingHasChanged) {
  const Folder folder;
  save(folder / "a", run_job, job(2, 2));
  std::string bad = contents(folder / "a");
  bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 0x40);
  overwrite(folder / "a", bad);
  expect_refused<compress::DecodeError>(
      folder / "a", kAdam, AllOf(HasSubstr("worker 0: "), HasSubstr(folder / "a"), HasSubstr("is damaged")));
  overwrite(folder / "a", "the weights of something else");
  expect_refused<compress::DecodeError>(folder / "a", kAdam, HasSubstr(folder / "a"));
  expect_refused<std::runtime_error>(folder / "none", kAdam, HasSubstr(folder / "none"));
}

TEST(OptimizerStates, OfAnotherThanTheFilesOptimizerAreRefusedBeforeThatIsSet) {
  const Folder folder;
  {
    CheckpointWriter file(folder / "a");
    const Layout keys = {{kKeys[1], {}, {0, 0}}, {kKeys[0], {}, {1, 0}}};  // by name
    add_head(file, optimizer_head(Dump::kStatesAndParameters, kAdam, keys));
    for (std::uint64_t key = 0; key < keys.size(); ++key) {
      const std::uint64_t elements = keys[key].spec.elements();
      const OptimizerState of_sgd{std::vector<float>(elements), 1};
      file.add({RecordKind::kOptimizerState, key, 0, elements}, encode_state(of_sgd).bytes());
    }
    file.finish();
  }
  expect_refused<compress::DecodeError>(folder / "a", "sgd learning_rate=0.5",
                                        HasSubstr("has 1 moments an element of key 'b', and adam keeps 2"));
}

TEST(OptimizerStates, OfDifferentFilesAreRefusedWhereEachRankReadsItsOwn) {
  const Folder folder;
  const Saved saved = save(folder / "0");
  save(folder / "1", run_job, job(3, 2));  // other gradients, other moments
  run_native(job(2, 0), [&](Engine& engine) {
    Worker worker(engine, saved.at, kAdam);
    const std::string own = folder / std::to_string(engine.rank());
    EXPECT_THAT([&] { engine.optimizer_states().load(own); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(HasSubstr("files of load_optimizer_states differ: worker 0 has "),
                          HasSubstr(" with the checksum "), HasSubstr("; give every rank the same"))));
    EXPECT_EQ(engine.optimizer_states().load(folder / "0"), "");
  });
}

TEST(OptimizerStates, BelongToAnOptimizerAndToKeys) {
  const Folder folder;
  save(folder / "a", run_job, job(2, 2));
  expect_refused<std::invalid_argument>(
      folder / "a", "sgd momentum=0.9",
      AllOf(HasSubstr(folder / "a"), HasSubstr("holds the states of adam, and this job has set 'sgd "),
            HasSubstr("call set_optimizer with adam first")));
  run_job(job(2, 1), [&](Engine& engine) {
    engine.declare(std::vector<KeySpec>{{"w", {200'001}}, {"b", {7}}});
    engine.set_optimizer(kAdam);
    EXPECT_THAT([&] { engine.optimizer_states().load(folder / "a"); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(HasSubstr("load_optimizer_states: " + (folder / "a")),
                          HasSubstr("has key 'w' float32 (200000), this job has 'w' float32 (200001)"))));
  });
}

TEST(OptimizerStates, NeedAnOptimizerAndWeights) {
  const Folder folder;
  save(folder / "a", run_job, job(2, 2));
  run_job(job(2, 1), [&](Engine& engine) {
    engine.declare(kKeys);
    const auto refused = ThrowsMessage<std::logic_error>(
        AllOf(HasSubstr("_optimizer_states: no optimizer is set"), HasSubstr("call set_optimizer on every")));
    EXPECT_THAT([&] { engine.optimizer_states().save(folder / "b", Dump::kStates); }, refused);
    EXPECT_THAT([&] { engine.optimizer_states().load(folder / "a"); }, refused);
    engine.set_optimizer(kAdam);
    EXPECT_THAT([&] { engine.optimizer_states().load(folder / "a"); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("init the key first")));
  });
  EXPECT_FALSE(std::filesystem::exists(folder / "b"));
}

TEST(OptimizerStates, AreRefusedDuringAStepAndWhereThereAreTables) {
  const Folder folder;
  run_peers({1}, [&](Engine& engine) {
    const Worker worker(engine, first_weights(), kAdam);
    Weights values = first_weights();
    const std::vector<ArrayView> spans(values.begin(), values.end());
    engine.slots().bind(worker.keys(), spans);
    engine.slots().mark_ready(0);
    EXPECT_THAT([&] { engine.optimizer_states().save(folder / "a", Dump::kStates); },
                ThrowsMessage<std::logic_error>(HasSubstr("1 of 2 slots are marked")));
    engine.slots().mark_ready(1);
    ASSERT_TRUE(engine.slots().drain_for(std::chrono::seconds(60)));
    const KeySpec table{"table", {10, 4}};
    engine.sparse().declare({&table, 1});
    EXPECT_THAT([&] { engine.optimizer_states().save(folder / "a", Dump::kStates); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("tables of rows")));
  });
}

TEST(OptimizerStates, ThatCannotBeWrittenLeaveTheFileBefore) {
  const Folder folder;
  save(folder / "a", run_job, job(1, 1));
  const std::string before = contents(folder / "a");
  run_job(job(1, 1), [&](Engine& engine) {
    const Worker worker(engine, first_weights(), kAdam);
    EXPECT_THAT([&] { engine.optimizer_states().save(folder / "no/such", Dump::kStates); },
                ThrowsMessage<std::runtime_error>(HasSubstr(folder / "no/such")));
    std::filesystem::create_directory(folder / "a.worker-0.unfinished");
    EXPECT_THROW(engine.optimizer_states().save(folder / "a", Dump::kStates), std::runtime_error);
  });
  EXPECT_EQ(contents(folder / "a"), before);
}

}  // namespace
}  // namespace gradwire::kvstore
