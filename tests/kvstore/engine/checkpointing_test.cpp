// A job that is saved, ended and gone on from gives the bits of one that never stopped; one of another shape
// loses nothing that its workers and servers still owed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "kvstore/checkpoint/checkpoint_source.h"
#include "kvstore/engine/engine.h"
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

constexpr auto kLong = std::chrono::seconds(60);
/// Three travel in a bucket, one is cut over all servers, one is pushed by itself.
const std::vector<KeySpec> kKeys = {
    {"a", {500}}, {"b", {70}}, {"c", {9}}, {"large", {200'000}}, {"apart", {70'000}}};
constexpr std::size_t kSlots = 4;

JobSize job(std::uint32_t workers, std::uint32_t servers) {
  JobSize size{workers, servers};
  size.engine.shard_bound_elements = 100'000;
  return size;
}

void run_on_hosts(const JobSize& size, const Body& body) {
  run_hosts(size, size.workers == 4 ? Identities{"x", "x", "y", "y"} : Identities(size.workers, "x"), body);
}

/// One worker's part of a job.
class Worker {
 public:
  Worker(Engine& engine, const std::string& codec, const std::string& reply) : engine_(engine) {
    engine.compression().set(spec(codec), reply);
    keys_ = engine.declare(kKeys);
    for (const KeySpec& key : kKeys) values_.emplace_back(key.elements());
    std::vector<ArrayView> spans(values_.begin(), values_.begin() + kSlots);
    engine.slots().bind(std::span(keys_).first(kSlots), spans);
  }

  /// Returns what all keys' sums were.
  std::vector<float> step(unsigned number) {
    for (std::size_t i = 0; i < values_.size(); ++i) {  // in place: the engine knows this memory
      const unsigned seed = 100 * number + 10 * static_cast<unsigned>(i) + engine_.rank();
      std::ranges::copy(random_floats(values_[i].size(), seed), values_[i].begin());
    }
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) engine_.slots().mark_ready(slot);
    EXPECT_TRUE(engine_.slots().drain_for(kLong));
    engine_.push_pull(keys_.back(), values_.back(), values_.back(), 0).wait();
    std::vector<float> all;
    for (const auto& values : values_) all.insert(all.end(), values.begin(), values.end());
    return all;
  }

  std::vector<float> steps(unsigned first, unsigned end) {
    std::vector<float> all;
    for (unsigned number = first; number < end; ++number) {
      const auto sums = step(number);
      all.insert(all.end(), sums.begin(), sums.end());
    }
    return all;
  }

  const std::vector<KeyId>& keys() const { return keys_; }

 private:
  Engine& engine_;
  std::vector<KeyId> keys_;
  std::vector<std::vector<float>> values_;
};

struct Case {
  const char* name;
  Runner run;
  const char* codec;
  const char* reply;
};

class Resumed : public testing::TestWithParam<Case> {};

constexpr Case kCases[] = {
    {"NoneOfServers", run_job, "none", "none"},
    {"Fp16OfServers", run_job, "fp16", "fp16"},
    {"TwoBitFixedOfServers", run_job, "2bit:threshold=0.25", "exact"},
    {"TwoBitFixedSameOfServers", run_job, "2bit:threshold=0.25", "2bit"},
    {"TwoBitAutoOfServers", run_job, "2bit:threshold=auto", "exact"},
    {"TwoBitAutoSameOfServers", run_job, "2bit:threshold=auto", "2bit"},
    {"TopKOfServers", run_job, "topk", "topk"},
    {"OneBitOfServers", run_job, "1bit", "1bit"},
    {"QsgdDrawsOfServers", run_job, "qsgd", "fp32"},
    {"RandomKDrawsOfServers", run_job, "randomk:ratio=0.1", "randomk"},
    {"TwoBitAutoOfPeers", run_peers, "2bit:threshold=auto", "2bit"},
    {"TopKOfPeers", run_peers, "topk", "topk"},
    {"TwoBitAutoNative", run_native, "2bit:threshold=auto", "2bit"},
    {"TwoBitAutoOfHosts", run_on_hosts, "2bit:threshold=auto", "2bit"},
    {"TopKOfHosts", run_on_hosts, "topk", "topk"},
};
INSTANTIATE_TEST_SUITE_P(All, Resumed, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(Resumed, GivesTheBitsOfAJobThatNeverStopped) {
  const Folder folder;
  const Case& test = GetParam();
  const JobSize size = job(4, 2);
  std::vector<float> undisturbed, resumed;
  test.run(size, [&](Engine& engine) {
    Worker worker(engine, test.codec, test.reply);
    worker.steps(0, 3);
    engine.checkpoints().save(folder.path(), "of rank " + std::to_string(engine.rank()));
    const auto sums = worker.steps(3, 6);
    if (engine.rank() == 0) undisturbed = sums;
  });
  test.run(size, [&](Engine& engine) {
    Worker worker(engine, test.codec, test.reply);
    EXPECT_EQ(engine.checkpoints().load(folder.path()).workers, 4U);
    const auto sums = worker.steps(3, 6);
    if (engine.rank() == 0) resumed = sums;
  });
  EXPECT_EQ(resumed, undisturbed);
}

class Optimized : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Optimized,
                         testing::Values("test", "sgd momentum=0.9", "adam", "adamw wd=0.1", "adagrad"));

TEST_P(Optimized, WeightsAndStatesGoOn) {
  for (const auto& [run, resumed_servers] : {std::pair{static_cast<Runner>(run_job), 2U},
                                             {static_cast<Runner>(run_job), 3U},
                                             {static_cast<Runner>(run_native), 2U},
                                             {static_cast<Runner>(run_on_hosts), 2U}}) {
    const Folder folder;
    const std::vector<KeySpec> specs = {{"w", {200'000}}, {"b", {7}}};
    const auto steps = [&](Engine& engine, const std::vector<KeyId>& keys, unsigned first) {
      std::vector<float> all;
      for (unsigned number = first; number < first + 3; ++number) {
        for (std::size_t k = 0; k < keys.size(); ++k) {
          auto values = random_floats(specs[k].elements(), 10 * number + engine.rank());
          engine.push_pull(keys[k], values, values, 0).wait();
          all.insert(all.end(), values.begin(), values.end());
        }
      }
      return all;
    };
    std::vector<float> undisturbed, resumed;
    run(job(4, 2), [&](Engine& engine) {
      const auto keys = engine.declare(specs);
      for (std::size_t k = 0; k < keys.size(); ++k)
        engine.init(keys[k], random_floats(specs[k].elements(), 99));
      engine.set_optimizer(GetParam());
      steps(engine, keys, 0);
      engine.checkpoints().save(folder.path());
      const auto weights = steps(engine, keys, 3);
      if (engine.rank() == 0) undisturbed = weights;
    });
    run(job(4, resumed_servers), [&](Engine& engine) {
      const auto keys = engine.declare(specs);
      for (std::size_t k = 0; k < keys.size(); ++k)
        engine.init(keys[k], std::vector<float>(specs[k].elements()));
      EXPECT_EQ(engine.checkpoints().load(folder.path()).optimizer, GetParam());
      std::vector<float> before(specs[1].elements());
      engine.pull(keys[1], before, 0).wait();  // a weight, and not what init() gave
      EXPECT_NE(before, std::vector<float>(before.size()));
      const auto weights = steps(engine, keys, 3);
      if (engine.rank() == 0) resumed = weights;
    });
    EXPECT_EQ(resumed, undisturbed);
  }
}

// ------------------------------------------------------------------------------------- another shape

/// What was owed of each element of each key, over all ranks: by workers, and by servers.
struct Mass {
  std::map<std::string, std::vector<double>> workers, servers;
  double magnitude = 0;  ///< sum of all residuals' absolute values
};

Mass mass_of(const std::string& folder) {
  const auto path = manifest_path(folder);
  const Manifest manifest = read_manifest(contents(path), path);
  Mass mass;
  const auto add = [&](auto& by_key, const RecordName& name, const std::vector<float>& residual) {
    const LayoutTensor& tensor = manifest.layout[name.tensor];
    const std::vector<std::uint64_t> own{name.tensor};
    std::uint64_t begin = 0;
    for (const std::uint64_t key : tensor.members.empty() ? own : tensor.members) {
      const KeySpec& spec = manifest.layout[key].spec;
      auto& sums = by_key[spec.name];
      sums.resize(spec.elements());
      for (std::uint64_t i = 0; i < spec.elements(); ++i) {
        const std::uint64_t at = begin + i;
        if (residual.empty() || at < name.offset || at >= name.offset + name.count) continue;
        sums[i] += residual[at - name.offset];
        mass.magnitude += std::abs(residual[at - name.offset]);
      }
      begin += spec.elements();
    }
  };
  for (const Manifest::File& file : manifest.files) {
    const CheckpointReader reader(std::filesystem::path(folder) / file.name);
    for (const auto& record : reader.records()) {
      const auto bytes = reader.read(record);
      if (record.name.kind == RecordKind::kTensor)
        add(mass.workers, record.name, decode_tensor_state(bytes, record.name.count).residual);
      if (record.name.kind == RecordKind::kPartition)
        add(mass.servers, record.name, decode_partition_state(bytes, record.name.count).residual);
    }
  }
  return mass;
}

struct Shape {
  const char* name;
  Runner run;
  JobSize size;
  std::uint64_t fusion_bytes = std::uint64_t{256} << 10;
};

class Reshaped : public testing::TestWithParam<Shape> {};
const Shape kShapes[] = {
    {"FewerWorkers", run_job, job(3, 2)},   {"MoreWorkers", run_job, job(6, 2)},
    {"OneWorker", run_job, job(1, 2)},      {"MoreServers", run_job, job(4, 5)},
    {"OneServer", run_job, job(4, 1)},      {"OtherBuckets", run_job, job(4, 2), 1},
    {"AllOfThat", run_job, job(3, 4), 500}, {"Peers", run_peers, job(3, 0)},
    {"Native", run_native, job(3, 0)},      {"Hosts", run_on_hosts, job(4, 2)},
};
INSTANTIATE_TEST_SUITE_P(All, Reshaped, testing::ValuesIn(kShapes),
                         [](const auto& info) { return info.param.name; });

TEST_P(Reshaped, LosesNoResidual) {
  const Folder before, after;
  for (const auto& [codec, reply] : {std::pair{"2bit:threshold=auto", "2bit"}, {"topk", "topk"}}) {
    run_job(job(4, 2), [&](Engine& engine) {
      Worker worker(engine, codec, reply);
      worker.steps(0, 3);
      engine.checkpoints().save(before.path());
    });
    Shape shape = GetParam();
    shape.size.engine.fusion_bytes = shape.fusion_bytes;
    shape.run(shape.size, [&](Engine& engine) {
      Worker worker(engine, codec, reply);
      engine.checkpoints().load(before.path());
      engine.checkpoints().save(after.path());
      for (const float sum : worker.steps(3, 5)) ASSERT_TRUE(std::isfinite(sum));
    });
    const Mass was = mass_of(before.path()), is = mass_of(after.path());
    EXPECT_GT(was.magnitude, 0);
    EXPECT_TRUE(is.servers == was.servers);  // moved, never added
    for (const auto& [key, masses] : was.workers) {
      ASSERT_EQ(is.workers.at(key).size(), masses.size());
      for (std::size_t i = 0; i < masses.size();
           ++i)  // a rounding of float32 for each addition, of values below 8
        ASSERT_NEAR(is.workers.at(key)[i], masses[i], 3 * 8 * 0x1p-24) << key << " element " << i;
    }
  }
}

TEST(Reshaping, NewWorkersBeginWithNothingAndOldOnesWithTheirOwn) {
  const Folder folder;
  std::vector<std::vector<float>> saved(2);
  run_job(job(2, 1), [&](Engine& engine) {
    Worker worker(engine, "2bit:threshold=0.25", "exact");
    worker.steps(0, 2);
    saved[engine.rank()] = engine.residuals().of(worker.keys()[3]);
    engine.checkpoints().save(folder.path(), std::to_string(engine.rank()));
  });
  run_job(job(3, 1), [&](Engine& engine) {
    Worker worker(engine, "2bit:threshold=0.25", "exact");
    EXPECT_EQ(engine.checkpoints().load(folder.path()).workers, 2U);
    const auto residual = engine.residuals().of(worker.keys()[3]);
    EXPECT_EQ(residual, engine.rank() < 2 ? saved[engine.rank()] : std::vector<float>());
  });
  for (const std::uint32_t rank : {0U, 1U, 2U, 7U}) {
    const FrontEnd found = read_front_end(folder.path(), rank);
    EXPECT_EQ(found.workers, 2U);
    EXPECT_EQ(found.given_by, rank % 2);
    EXPECT_EQ(found.bytes, std::to_string(rank % 2));
  }
}

// ------------------------------------------------------------------------------------- what goes wrong

void save_one(const std::string& folder, unsigned steps = 1) {
  run_job(job(2, 1), [&](Engine& engine) {
    Worker worker(engine, "2bit:threshold=0.25", "exact");
    worker.steps(0, steps);
    engine.checkpoints().save(folder);
  });
}

/// Loads, which must fail as `matches` says, on all ranks alike and with nothing changed: the job goes on.
template <typename Error, typename Matcher>
void expect_refused(const std::string& folder, const Matcher& matches) {
  std::mutex mutex;
  std::vector<std::string> texts;
  run_job(job(2, 1), [&](Engine& engine) {
    Worker worker(engine, "none", "none");
    try {
      engine.checkpoints().load(folder);
      ADD_FAILURE() << "it was loaded";
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      texts.emplace_back(error.what());
    }
    EXPECT_EQ(worker.step(0).size(), 270'579U);
    EXPECT_TRUE(engine.residuals().of(worker.keys()[0]).empty());
  });
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_THAT(texts[0], matches);
}

TEST(Checkpoint, DamageIsFoundBeforeAnythingHasChanged) {
  const Folder folder;
  save_one(folder.path());
  for (const std::string& name : {file_name(1, 0), file_name(1, 1), std::string("checkpoint.manifest")}) {
    const std::string good = contents(folder / name);
    for (const std::size_t at : {std::size_t{3}, good.size() / 2, good.size() - 3}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x40);
      overwrite(folder / name, bad);
      expect_refused<compress::DecodeError>(folder.path(), HasSubstr(folder / name));
    }
    overwrite(folder / name, good.substr(0, good.size() / 2));
    expect_refused<compress::DecodeError>(folder.path(), HasSubstr(folder / name));
    overwrite(folder / name, good);
  }
}

TEST(Checkpoint, AFileOfAnotherOneIsRefused) {
  const Folder folder, other;
  save_one(folder.path());
  save_one(other.path(), 2);
  std::filesystem::copy_file(other / file_name(1, 1), folder / file_name(1, 1),
                             std::filesystem::copy_options::overwrite_existing);
  expect_refused<compress::DecodeError>(folder.path(), HasSubstr("is of another checkpoint"));
}

TEST(Checkpoint, WhatIsNotThereIsNamed) {
  const Folder folder;
  expect_refused<std::runtime_error>(folder.path(), HasSubstr(folder / "checkpoint.manifest"));
  save_one(folder.path());
  std::filesystem::remove(folder / file_name(1, 1));
  expect_refused<std::runtime_error>(folder.path(), HasSubstr(folder / file_name(1, 1)));
}

// As a crash leaves it: files of the next one, whole and half, and no manifest.
TEST(Checkpoint, WhatWasBegunAfterItDoesNotMatter) {
  const Folder folder;
  save_one(folder.path());
  overwrite(folder / file_name(2, 0), "half of a fi");
  overwrite(folder / (file_name(2, 1) + ".unfinished"), "les");
  overwrite(folder / "checkpoint.manifest.unfinished", "gradw");
  const std::string manifest = contents(folder / "checkpoint.manifest");
  run_job(job(2, 1), [&](Engine& engine) {
    Worker worker(engine, "2bit:threshold=0.25", "exact");
    engine.checkpoints().load(folder.path());
    worker.steps(1, 2);
    engine.checkpoints().save(folder.path());
  });
  EXPECT_NE(contents(folder / "checkpoint.manifest"), manifest);
  EXPECT_FALSE(std::filesystem::exists(folder / file_name(1, 0)));
  EXPECT_TRUE(std::filesystem::exists(folder / file_name(3, 0)));
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

TEST(Checkpoint, WhatCannotBeWrittenIsToldOnAllRanksAndTheOneBeforeStays) {
  const Folder folder, elsewhere;
  save_one(folder.path());
  const std::string manifest = contents(folder / "checkpoint.manifest");
  run_job(job(2, 1), [&](Engine& engine) {
    Worker worker(engine, "2bit:threshold=0.25", "exact");
    const auto save = [&](const std::string& of_worker_1) {
      engine.checkpoints().save(engine.rank() == 0 ? folder.path().string() : of_worker_1);
    };
    EXPECT_THAT([&] { save("/proc/none"); },
                ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("worker 1: "), HasSubstr("/proc/none"))));
    EXPECT_THAT([&] { save(elsewhere.path()); },
                ThrowsMessage<std::runtime_error>(HasSubstr("give a folder that all workers see")));
    const std::filesystem::path unfinished = folder / "checkpoint.manifest.unfinished";
    if (engine.rank() == 0) std::filesystem::create_directories(unfinished / "in the way");
    engine.barrier();
    EXPECT_THAT([&] { engine.checkpoints().save(folder.path()); },
                ThrowsMessage<std::runtime_error>(HasSubstr("checkpoint.manifest.unfinished")));
    engine.barrier();
    if (engine.rank() == 0) std::filesystem::remove_all(unfinished);
    engine.barrier();
    worker.step(0);
  });
  EXPECT_EQ(contents(folder / "checkpoint.manifest"), manifest);
  EXPECT_THAT(names_in(folder.path()),
              testing::UnorderedElementsAre("checkpoint.manifest", file_name(1, 0), file_name(1, 1)));
  EXPECT_THAT(names_in(elsewhere.path()), testing::IsEmpty());
  run_job(job(2, 1), [&](Engine& engine) {
    Worker worker(engine, "2bit:threshold=0.25", "exact");
    engine.checkpoints().load(folder.path());
  });
}

TEST(Checkpoint, BelongsToKeysAndOptimizer) {
  const Folder folder;
  save_one(folder.path());
  run_job(job(2, 1), [&](Engine& engine) {
    engine.declare(std::vector<KeySpec>{{"a", {501}}});
    EXPECT_THAT(
        [&] { engine.checkpoints().load(folder.path()); },
        ThrowsMessage<std::invalid_argument>(HasSubstr("has key 'a' float32 (500), this job has 'a'")));
  });
  run_job(job(2, 1), [&](Engine& engine) {
    engine.set_optimizer("sgd");
    Worker worker(engine, "none", "none");
    EXPECT_THAT(
        [&] { engine.checkpoints().load(folder.path()); },
        ThrowsMessage<std::invalid_argument>(HasSubstr("is of no optimizer, this job has set 'sgd'")));
  });
}

TEST(Checkpoint, IsSavedBetweenStepsAndLoadedBeforeTheFirst) {
  const Folder folder;
  save_one(folder.path());
  run_job(job(1, 1), [&](Engine& engine) {
    Worker worker(engine, "none", "none");
    engine.slots().mark_ready(0);
    EXPECT_THAT([&] { engine.checkpoints().save(folder.path()); },
                ThrowsMessage<std::logic_error>(HasSubstr("1 of 4 slots are marked")));
    for (std::uint32_t slot = 1; slot < kSlots; ++slot) engine.slots().mark_ready(slot);
    ASSERT_TRUE(engine.slots().drain_for(kLong));
    EXPECT_THAT([&] { engine.checkpoints().load(folder.path()); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("has pushed already")));
  });
}

TEST(Checkpoint, OfSumsIsNotPulledBeforeTheFirstPush) {
  const Folder folder;
  const auto declare = [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {3}}});
    engine.init(keys[0], std::vector<float>{1, 2, 3});
    return keys[0];
  };
  run_job(job(1, 1), [&](Engine& engine) {
    const KeyId key = declare(engine);
    std::vector<float> values(3);
    engine.push_pull(key, values, values, 0).wait();
    engine.checkpoints().save(folder.path());
  });
  run_job(job(1, 1), [&](Engine& engine) {
    const KeyId key = declare(engine);
    engine.checkpoints().load(folder.path());
    std::vector<float> values(3);
    EXPECT_THAT([&] { engine.pull(key, values, 0).wait(); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("pull after a push")));
  });
}

TEST(Checkpoint, OfSumsTakesAnOptimizerOnceItsKeysWerePushed) {
  const Folder folder;
  const std::vector<KeySpec> specs = {{"v", {3}}, {"w", {3}}};
  const auto run = [&](const std::function<void(Engine&, KeyId, KeyId)>& body) {
    run_job(job(2, 2), [&](Engine& engine) {
      const auto keys = engine.declare(specs);
      for (const KeyId key : keys) engine.init(key, std::vector<float>{1, 2, 3});
      body(engine, keys[0], keys[1]);
    });
  };
  const auto push = [](Engine& engine, KeyId key) {
    std::vector<float> ones(3, 1);
    engine.push_pull(key, ones, ones, 0).wait();
    return ones;
  };
  run([&](Engine& engine, KeyId, KeyId w) {
    push(engine, w);
    engine.checkpoints().save(folder.path());
  });
  run([&](Engine& engine, KeyId v, KeyId w) {
    engine.checkpoints().load(folder.path());
    EXPECT_THAT([&] { engine.set_optimizer("test"); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(HasSubstr("key 'w' has no value"), HasSubstr("push it once before"))));
    push(engine, w);
    engine.set_optimizer("test");
    EXPECT_EQ(push(engine, w), (std::vector<float>{4, 4, 4}));
    EXPECT_EQ(push(engine, v), (std::vector<float>{3, 4, 5}));
  });
}

}  // namespace
}  // namespace gradwire::kvstore
