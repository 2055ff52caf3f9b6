// Sums over NCCL: everything but NCCL itself, which needs a GPU (device_nccl_test.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <numeric>
#include <thread>

#include "tests/test_options.h"
#include "tests/transport/collective_outcomes.h"
#include "tests/transport/frames.h"
#include "tests/transport/nccl/nccl_memory_port.h"
#include "transport/inproc/inproc.h"
#include "transport/nccl/nccl_bootstrap.h"
#include "transport/nccl/nccl_collective.h"
#include "transport/nccl/nccl_library.h"

namespace gradwire::transport {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using namespace std::chrono_literals;

/// A job of threads, each of which joins by NCCL.
class NcclJob {
 public:
  explicit NcclJob(std::uint32_t ranks)
      : network_(ranks, 0), sums_(ranks), sharing_(ranks, GpuSharing::kRefused) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      memory_.push_back(std::make_shared<NcclMemory>());
      memory_.back()->device = "GPU-" + std::to_string(rank);
    }
  }

  NcclMemory& memory(std::uint32_t rank) { return *memory_[rank]; }
  GpuSharing& sharing(std::uint32_t rank) { return sharing_[rank]; }
  NcclPatience& patience() { return patience_; }

  /// Runs body as every rank and gives each one's error.
  std::vector<std::string> run(const std::function<void(std::uint32_t, Collective&)>& body) {
    std::vector<std::future<std::string>> ranks;
    for (std::uint32_t rank = 0; rank < memory_.size(); ++rank) {
      ranks.push_back(std::async(std::launch::async, [&, rank] {
        const auto control = network_.connect({Role::kWorker, rank});
        return error_of([&] {
          const auto collective = join_nccl(*control, std::make_unique<NcclMemoryPort>(sums_, memory_[rank]),
                                            patience_, sharing_[rank]);
          body(rank, *collective);
        });
      }));
    }
    std::vector<std::string> errors;
    for (auto& rank : ranks) errors.push_back(rank.get());
    return errors;
  }

 private:
  InprocNetwork network_;
  InprocCollectives sums_;
  std::vector<std::shared_ptr<NcclMemory>> memory_;
  std::vector<GpuSharing> sharing_;
  NcclPatience patience_{20'000ms, 20'000ms, 5'000ms};
};

class NcclSumsOf : public testing::TestWithParam<std::uint32_t> {};

TEST_P(NcclSumsOf, EveryTypeAndBlocksOfAnyLength) {
  const auto ranks = static_cast<int>(GetParam());
  NcclJob job(GetParam());
  const auto errors = job.run([&](std::uint32_t rank, Collective& collective) {
    EXPECT_EQ(collective.name(), "nccl");
    EXPECT_EQ(collective.rank(), rank);
    EXPECT_EQ(collective.size(), GetParam());
    const int r = static_cast<int>(rank);
    const int all = ranks * (ranks - 1) / 2;
    EXPECT_EQ(values_of<float>(
                  start(collective, buffer_of<float>({1.5F, static_cast<float>(r)}), ElementType::kFloat32)),
              (std::vector<float>{1.5F * static_cast<float>(ranks), static_cast<float>(all)}));
    EXPECT_EQ(
        values_of<std::int8_t>(start(collective, buffer_of<std::int8_t>({1, -1, static_cast<std::int8_t>(r)}),
                                     ElementType::kInt8)),
        (std::vector<std::int8_t>{static_cast<std::int8_t>(ranks), static_cast<std::int8_t>(-ranks),
                                  static_cast<std::int8_t>(all)}));
    EXPECT_EQ(values_of<std::int16_t>(
                  start(collective, buffer_of<std::int16_t>({-300, 32'767}), ElementType::kInt16)),
              (std::vector<std::int16_t>{static_cast<std::int16_t>(-300 * ranks),
                                         static_cast<std::int16_t>(32'767 * ranks)}))
        << "integers wrap";
    EXPECT_EQ(
        values_of<std::int32_t>(start(collective, buffer_of<std::int32_t>({70'000}), ElementType::kInt32)),
        (std::vector<std::int32_t>{70'000 * ranks}));
    const std::uint16_t one_in_bf16 = 0x3f80;
    EXPECT_EQ(values_of<std::uint16_t>(
                  start(collective, buffer_of<std::uint16_t>({one_in_bf16}), ElementType::kBfloat16))
                  .size(),
              1U);
    std::vector<int> gathered;
    for (int other = 0; other < ranks; ++other) gathered.insert(gathered.end(), {other, -other});
    EXPECT_EQ(values_of<int>(start(collective, buffer_of<int>({r, -r}), std::nullopt)), gathered);
    EXPECT_EQ(values_of<float>(start(collective, {}, ElementType::kFloat32)), std::vector<float>());
    EXPECT_EQ(values_of<float>(start(collective, {}, std::nullopt)), std::vector<float>());
  });
  EXPECT_THAT(errors, Each("no error"));
  for (std::uint32_t rank = 0; rank < GetParam(); ++rank) {
    EXPECT_EQ(job.memory(rank).ended, 1);
    EXPECT_EQ(job.memory(rank).aborted, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclSumsOf, testing::Values(1, 2, 3, 5));

TEST(NcclSums, ManyAtOnceEndInOrderInFewSlots) {
  NcclJob job(2);
  const auto errors = job.run([&](std::uint32_t rank, Collective& collective) {
    std::vector<std::future<Outcome>> sums;
    for (int i = 0; i < 200; ++i) {
      const std::vector<int> values(1 + static_cast<std::size_t>(i) * 37 % 500, i + static_cast<int>(rank));
      sums.push_back(start(collective, buffer_of(values), ElementType::kInt32));
    }
    for (int i = 0; i < 200; ++i)
      EXPECT_THAT(values_of<int>(std::move(sums[static_cast<std::size_t>(i)])), Each(2 * i + 1));
  });
  EXPECT_THAT(errors, Each("no error"));
  EXPECT_EQ(job.memory(0).begun, 200);
  EXPECT_LE(job.memory(0).slots, 60) << "slots are used again";
}

TEST(NcclSums, AnElementCutInTwoIsMisuse) {
  NcclJob job(1);
  const auto errors = job.run([&](std::uint32_t, Collective& collective) {
    EXPECT_THROW(start(collective, Buffer::allocate(6), ElementType::kFloat32), std::invalid_argument);
  });
  EXPECT_THAT(errors, Each("no error"));
}

TEST(NcclFailures, OfTheCommunicatorEndWhatIsUnderWayAndAllThatComes) {
  NcclJob job(2);
  const auto errors = job.run([&](std::uint32_t rank, Collective& collective) {
    job.memory(rank).sums = false;
    auto first = start(collective, buffer_of<float>({1}), ElementType::kFloat32);
    auto second = start(collective, buffer_of<float>({1}), std::nullopt);
    std::this_thread::sleep_for(20ms);
    job.memory(rank).fails = true;
    const auto names_rank = StartsWith("TransportError: nccl: worker " + std::to_string(rank) +
                                       " of 2: ncclCommGetAsyncError: remote process exited");
    EXPECT_THAT(error_of(std::move(first)), names_rank);
    EXPECT_THAT(error_of(std::move(second)), names_rank);
    EXPECT_THAT(error_of(start(collective, buffer_of<float>({1}), ElementType::kFloat32)), names_rank);
  });
  EXPECT_THAT(errors, Each("no error"));
  for (const std::uint32_t rank : {0U, 1U}) EXPECT_EQ(job.memory(rank).aborted, 1);
}

TEST(NcclFailures, ASumThatDoesNotEndHasADeadline) {
  NcclJob job(2);
  job.patience().sum = 200ms;
  const auto errors = job.run([&](std::uint32_t rank, Collective& collective) {
    if (rank == 1) {
      std::this_thread::sleep_for(1s);
      return;
    }
    EXPECT_THAT(error_of(start(collective, buffer_of<float>({1, 2}), ElementType::kFloat32)),
                AllOf(HasSubstr("nccl: worker 0 of 2: sum 0 (8 bytes) has not ended after 0.2 s"),
                      HasSubstr("every rank must push the same keys")));
  });
  EXPECT_THAT(errors, Each("no error"));
  EXPECT_EQ(job.memory(0).aborted, 1);
}

TEST(NcclFailures, RanksThatNeverJoinHaveADeadline) {
  NcclJob job(2);
  job.patience().join = 300ms;
  job.memory(0).joins = job.memory(1).joins = false;
  const auto errors = job.run([](std::uint32_t, Collective&) { FAIL(); });
  EXPECT_THAT(errors, Each(HasSubstr("of 2: not every rank had joined the communicator after 0.3 s")));
  for (const std::uint32_t rank : {0U, 1U}) EXPECT_EQ(job.memory(rank).aborted, 1);
}

TEST(NcclFailures, ACollectiveThatIsLeftFailsWhatIsUnderWay) {
  NcclJob job(2);
  std::future<Outcome> sum;
  const auto errors = job.run([&](std::uint32_t rank, Collective& collective) {
    if (rank == 0) sum = start(collective, buffer_of<float>({1}), ElementType::kFloat32);
  });
  EXPECT_THAT(errors, Each("no error"));
  EXPECT_THAT(error_of(std::move(sum)),
              HasSubstr("nccl: worker 0 of 2: it left while 1 operation was under way"));
  EXPECT_EQ(job.memory(0).aborted, 1);
}

// Known of NCCL: NVIDIA/nccl issues 863 and 1013.
TEST(NcclFailures, AnAbortThatHangsHoldsNobodyUp) {
  const auto job = std::make_unique<NcclJob>(1);
  job->patience().end = 200ms;
  job->memory(0).hangs_in_abort = true;
  job->memory(0).sums = false;
  const auto errors = job->run([&](std::uint32_t, Collective& collective) {
    collective.all_reduce(buffer_of<float>({1}), ElementType::kFloat32,
                          [](Buffer, const std::exception_ptr&) {});
  });
  EXPECT_THAT(errors, Each("no error"));
  EXPECT_EQ(job->memory(0).aborted, 1) << "and it still hangs: run() has not waited for it";
  job->memory(0).hangs_in_abort = false;  // its thread ends now
  std::this_thread::sleep_for(100ms);
}

TEST(NcclBootstrap, IsReadBackAndDamageIsAnError) {
  NcclBootstrap entry{"2.32.3", "NVIDIA H100 80GB HBM3 (GPU-12ab)", GpuSharing::kAllowed, {}};
  for (std::size_t i = 0; i < entry.id.size(); ++i) entry.id[i] = static_cast<std::byte>(i * 3);
  EXPECT_EQ(parse_nccl_bootstrap(to_text(entry), 1), entry);
  const std::string text = to_text(entry);
  entry.sharing = GpuSharing::kRefused;
  EXPECT_EQ(parse_nccl_bootstrap(to_text(entry), 1), entry);
  for (const std::size_t length : {std::size_t{0}, std::size_t{50}, text.size() - 1})
    EXPECT_THAT(error_of([&] { parse_nccl_bootstrap(text.substr(0, length), 3); }),
                HasSubstr("nccl: the description that worker 3 sent cannot be read"));
  std::string other = text;
  other.replace(other.find("shared"), 6, "SHARED");
  EXPECT_THAT(error_of([&] { parse_nccl_bootstrap(other, 3); }), HasSubstr("cannot be read"));
}

class NcclSharedGpu : public testing::TestWithParam<std::vector<std::uint32_t>> {};

TEST_P(NcclSharedGpu, IsRefusedUnlessBothRanksAllowIt) {
  NcclJob job(3);
  job.memory(2).device = job.memory(0).device;
  for (const std::uint32_t rank : GetParam()) job.sharing(rank) = GpuSharing::kAllowed;
  const auto errors = job.run([](std::uint32_t, Collective&) { FAIL(); });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("TransportError: nccl: worker 0 and worker 2 have the same GPU (GPU-0)"),
                         HasSubstr("GRADWIRE_NCCL_SHARE_GPU=on for every rank"), HasSubstr("'allreduce'"))));
}

INSTANTIATE_TEST_SUITE_P(AllowedBy, NcclSharedGpu,
                         testing::Values(std::vector<std::uint32_t>{}, std::vector<std::uint32_t>{0, 1},
                                         std::vector<std::uint32_t>{2}));

TEST(NcclBootstrap, RanksThatAllowItShareOneGpu) {
  NcclJob job(4);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    job.memory(rank).device = "GPU-0";
    job.sharing(rank) = GpuSharing::kAllowed;
  }
  const auto errors = job.run([](std::uint32_t, Collective& collective) {
    EXPECT_EQ(values_of<float>(start(collective, buffer_of<float>({1.5F}), ElementType::kFloat32)),
              (std::vector<float>{6.0F}));
  });
  EXPECT_THAT(errors, Each("no error"));
}

TEST(NcclBootstrap, VersionsMustBeEqual) {
  NcclJob job(2);
  job.memory(1).version = "2.28.9";
  const auto errors = job.run([](std::uint32_t, Collective&) { FAIL(); });
  EXPECT_THAT(errors, Each(HasSubstr("worker 0 has NCCL 2.32.3, worker 1 has NCCL 2.28.9")));
}

TEST(NcclLibrary, OneThatIsNotThereIsAReason) {
  EXPECT_THAT(
      error_of([] { NcclLibrary("/nowhere/libnccl.so.2"); }),
      AllOf(HasSubstr("TransportError: nccl: '/nowhere/libnccl.so.2' cannot be loaded: "),
            HasSubstr("No such file"), HasSubstr("pip install nvidia-nccl-cu13"), HasSubstr("'allreduce'")));
}

TEST(NcclLibrary, AnotherLibraryIsRefused) {
  EXPECT_THAT(error_of([] { NcclLibrary("libm.so.6"); }),
              HasSubstr("has no ncclGetVersion, so it is not NCCL"));
}

TEST(NcclLibrary, VersionsAreWrittenAsPeopleDo) {
  EXPECT_EQ(nccl_version_text(23203), "2.32.3");
  EXPECT_EQ(nccl_version_text(21405), "2.14.5");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
}

TEST(NcclLibrary, TellsItsVersionWithoutAGpu) {
  const std::string library = test_options().nccl_library;
  if (library.empty()) GTEST_SKIP() << "NCCL is not installed: pip install nvidia-nccl-cu13";
  EXPECT_THAT(NcclLibrary(library).version(), testing::MatchesRegex("2\\.[0-9]+\\.[0-9]+"));
}

TEST(NcclPort, ThatCannotBeOpenedSaysWhy) {
  const std::string error = error_of([] { open_nccl("/nowhere/libnccl.so.2", 0); });
  EXPECT_THAT(error, StartsWith("TransportError: nccl: "));
  EXPECT_THAT(error, HasSubstr("'allreduce'"));
}

TEST(NcclSums, FreesNoMemoryWhileASumIsUnderWay) {
  NcclJob job(2);
  const auto errors = job.run([&](std::uint32_t rank, Collective& collective) {
    NcclMemory& memory = job.memory(rank);
    const auto small = [&] { return start(collective, buffer_of<int>({1}), ElementType::kInt32); };
    const auto await_begun = [&](int count) {
      while (memory.begun < count) std::this_thread::sleep_for(1ms);
    };
    memory.sums = false;
    auto first = small(), second = small();
    await_begun(2);  // in two slots
    memory.sums = true;
    EXPECT_EQ(values_of<int>(std::move(first)), std::vector<int>{2});
    EXPECT_EQ(values_of<int>(std::move(second)), std::vector<int>{2});
    memory.sums = false;
    auto third = small();  // in one of them; the other is too small for what follows
    auto large = start(collective, buffer_of(std::vector<int>(1 << 18, 1)), ElementType::kInt32);
    await_begun(4);
    memory.sums = true;
    EXPECT_EQ(values_of<int>(std::move(third)), std::vector<int>{2});
    EXPECT_EQ(values_of<int>(std::move(large)).size(), std::size_t{1} << 18);
  });
  EXPECT_THAT(errors, Each("no error"));
  for (const std::uint32_t rank : {0U, 1U}) EXPECT_EQ(job.memory(rank).freed_under_way, 0);
}

}  // namespace
}  // namespace gradwire::transport
