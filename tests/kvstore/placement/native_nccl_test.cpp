// Placement native over NCCL's queue and thread, with memory in the place of GPUs: the bits are those of
// servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kvstore/job.h"
#include "tests/kvstore/sums.h"
#include "tests/transport/nccl/nccl_memory_port.h"
#include "transport/nccl/nccl_collective.h"

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;

void run_nccl(const JobSize& size, const std::function<void(Engine&)>& body) {
  transport::InprocNetwork network(size.workers, 0);
  transport::InprocCollectives sums(size.workers);
  run_workers(size.workers, [&](std::uint32_t rank) {
    auto control = network.connect({transport::Role::kWorker, rank});
    auto memory = std::make_shared<transport::NcclMemory>();
    memory->device = "GPU-" + std::to_string(rank);
    auto nccl = transport::join_nccl(*control, std::make_unique<transport::NcclMemoryPort>(sums, memory),
                                     {.join = 20s, .sum = 20s, .end = 5s});
    Engine engine(std::move(control), std::move(nccl), size.engine);
    body(engine);
  });
}

TEST(NativeNccl, SumsCodesToTheBitsOfServers) {
  for (const CodeSums code_sums : {CodeSums::kGather, CodeSums::kIntegers}) {
    JobSize size{3};
    size.engine.code_sums = code_sums;
    EXPECT_EQ(results_of_codes(size, run_nccl), results_of_codes(size, run_job)) << to_string(code_sums);
  }
}

TEST(NativeNccl, SumsDenseGradients) {
  run_nccl({3}, [](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {300'001}}});
    auto values = random_floats(300'001, engine.rank());
    engine.push_pull(keys[0], values, values, 0).wait();
    EXPECT_EQ(values, rank_order_sum(300'001, 0, 3)) << "the memory that stands for GPUs adds in rank order";
  });
}

TEST(NativeNccl, AFailureOfTheCommunicatorFailsTheJobNamingItsRank) {
  transport::InprocNetwork network(2, 0);
  transport::InprocCollectives sums(2);
  std::vector<std::shared_ptr<transport::NcclMemory>> memory;
  for (const char* device : {"GPU-0", "GPU-1"}) {
    memory.push_back(std::make_shared<transport::NcclMemory>());
    memory.back()->device = device;
  }
  run_workers(2, [&](std::uint32_t rank) {
    auto control = network.connect({transport::Role::kWorker, rank});
    auto nccl = transport::join_nccl(
        *control, std::make_unique<transport::NcclMemoryPort>(sums, memory[rank]), {20s, 20s, 5s});
    Engine engine(std::move(control), std::move(nccl), EngineOptions());
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {1000}}});
    std::vector<float> values(1000, 1.0F);
    engine.push_pull(keys[0], values, values, 0).wait();
    try {
      engine.barrier();  // who wakes late hears here already of what failed after it
      if (rank == 1) memory[1]->fails = true;
      memory[rank]->sums = false;
      engine.push_pull(keys[0], values, values, 0).wait();
      FAIL() << "summed by a communicator that had failed";
    } catch (const transport::TransportError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("worker 1 of 2: ncclCommGetAsyncError"));
    }
  });
  EXPECT_EQ(memory[0]->aborted + memory[1]->aborted, 2);
}

}  // namespace
}  // namespace gradwire::kvstore
