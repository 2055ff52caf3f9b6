// NCCL itself, where there is a GPU; skipped, with the reason, where there is none. One GPU is one rank.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "tests/test_options.h"
#include "tests/transport/collective_outcomes.h"
#include "tests/transport/frames.h"
#include "transport/inproc/inproc.h"
#include "transport/nccl/nccl_collective.h"

namespace gradwire::transport {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

class DeviceNccl : public testing::Test {
 protected:
  void SetUp() override {
    if (test_options().nccl_library.empty()) GTEST_SKIP() << "NCCL is not installed";
    if (device_count() == 0) GTEST_SKIP() << "there is no CUDA device";
  }

  /// Runs body as so many ranks, each on a GPU of its own.
  static void run(int ranks, const std::function<void(int, Collective&)>& body) {
    InprocNetwork network(static_cast<std::uint32_t>(ranks), 0);
    std::vector<std::future<void>> running;
    for (int rank = 0; rank < ranks; ++rank) {
      running.push_back(std::async(std::launch::async, [&, rank] {
        const auto control = network.connect({Role::kWorker, static_cast<std::uint32_t>(rank)});
        const auto collective =
            join_nccl(*control, open_nccl(test_options().nccl_library, rank), {30'000ms, 30'000ms, 5'000ms});
        body(rank, *collective);
      }));
    }
    for (auto& one : running) one.get();
  }

  static void check_sums(int ranks) {
    run(ranks, [&](int rank, Collective& collective) {
      for (const std::size_t elements : {1, 1000, 3'000'001}) {
        const std::vector<float> floats(elements, 0.5F * static_cast<float>(rank + 1));
        const std::vector<std::int8_t> codes(elements, rank % 2 == 0 ? 1 : -1);
        const std::vector<std::int16_t> shorts(elements, static_cast<std::int16_t>(1000 + rank));
        auto sum = start(collective, buffer_of(floats), ElementType::kFloat32);
        auto code_sum = start(collective, buffer_of(codes), ElementType::kInt8);
        auto short_sum = start(collective, buffer_of(shorts), ElementType::kInt16);
        auto blocks = start(collective, buffer_of(floats), std::nullopt);
        const int triangle = ranks * (ranks + 1) / 2;
        EXPECT_EQ(values_of<float>(std::move(sum)),
                  std::vector<float>(elements, 0.5F * static_cast<float>(triangle)));
        EXPECT_EQ(values_of<std::int8_t>(std::move(code_sum)),
                  std::vector<std::int8_t>(elements, static_cast<std::int8_t>(ranks % 2)));
        EXPECT_EQ(
            values_of<std::int16_t>(std::move(short_sum)),
            std::vector<std::int16_t>(elements, static_cast<std::int16_t>(1000 * ranks + triangle - ranks)));
        const auto all = values_of<float>(std::move(blocks));
        ASSERT_EQ(all.size(), elements * static_cast<std::size_t>(ranks));
        for (int other = 0; other < ranks; ++other)
          EXPECT_EQ(all[elements * static_cast<std::size_t>(other)], 0.5F * static_cast<float>(other + 1));
      }
    });
  }
};

TEST_F(DeviceNccl, OneRankSumsAndGathers) { check_sums(1); }

TEST_F(DeviceNccl, ARankForEveryGpuSumsAndGathers) {
  if (device_count() < 2) GTEST_SKIP() << "there is one GPU, which is one rank";
  check_sums(device_count());
}

TEST_F(DeviceNccl, HalvesAreRoundedOnce) {
  run(1, [](int, Collective& collective) {
    const std::vector<std::uint16_t> halves{0x3c00, 0x0001, 0xfbff};  // fp16: 1, the smallest, -65504
    EXPECT_EQ(values_of<std::uint16_t>(start(collective, buffer_of(halves), ElementType::kFloat16)), halves);
    EXPECT_EQ(values_of<std::uint16_t>(start(collective, buffer_of(halves), ElementType::kBfloat16)), halves);
  });
}

TEST_F(DeviceNccl, LeavesTheCallersDeviceAsItWas) {
  int before = -1;
  ASSERT_EQ(cudaGetDevice(&before), cudaSuccess);
  run(1, [](int, Collective&) {});
  int after = -1;
  ASSERT_EQ(cudaGetDevice(&after), cudaSuccess);
  EXPECT_EQ(after, before);
}

TEST_F(DeviceNccl, AGpuThatIsNotThereIsNamed) {
  EXPECT_THAT(error_of([] { open_nccl(test_options().nccl_library, 99); }),
              HasSubstr("device=99 is not among the"));
}

TEST_F(DeviceNccl, ARankThatNeverComesHasADeadline) {
  const auto port = open_nccl(test_options().nccl_library, 0);
  const auto id = port->make_id();
  EXPECT_THAT(
      error_of([&] {
        NcclSums::join(open_nccl(test_options().nccl_library, 0), id, 0, 2, {2'000ms, 2'000ms, 5'000ms});
      }),
      HasSubstr("nccl: worker 0 of 2: not every rank had joined the communicator after 2 s"));
}

// Without a device the tests above are skipped; this one is not.
TEST(DeviceNcclMissing, IsAnErrorThatSaysWhy) {
  if (device_count() > 0) GTEST_SKIP() << "there is a CUDA device";
  const std::string library = test_options().nccl_library;
  if (library.empty()) GTEST_SKIP() << "NCCL is not installed";
  EXPECT_THAT(
      error_of([&] { open_nccl(library, 0); }),
      testing::AllOf(HasSubstr("TransportError: nccl: cudaGetDeviceCount: "), HasSubstr("'allreduce'")));
}

}  // namespace
}  // namespace gradwire::transport
