#include "kvstore/aggregate/straggler_counts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kvstore/job.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;

TEST(StragglerCounts, AreCountedByRank) {
  StragglerCounts pushes(3);
  for (const std::uint32_t worker : {2U, 0U, 2U}) pushes.note(worker);
  EXPECT_THAT(pushes.counts(), ElementsAre(1, 0, 2));
}

TEST(StragglerCounts, OfAllThreadsOfAllServersAreCountedOnce) {
  constexpr std::uint64_t kKeys = 24, kRounds = 3;
  JobSize size{2, 2};
  size.server_threads = 4;
  run_job(size, [&](Engine& engine) {
    std::vector<KeySpec> specs;
    for (std::uint64_t k = 0; k < kKeys; ++k) specs.push_back({std::to_string(k), {5}});
    const auto keys = engine.declare(specs);
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      std::vector<std::vector<float>> values(kKeys, std::vector<float>(5, 1.0F));
      std::vector<Ticket> pulled;
      for (std::uint64_t k = 0; k < kKeys; ++k)
        pulled.push_back(engine.push_pull(keys[k], values[k], values[k], 0));
      for (const Ticket& ticket : pulled) ticket.wait();
    }
    engine.barrier();
    const auto counts = engine.metrics().waited_for();
    ASSERT_EQ(counts.size(), 2U);
    EXPECT_EQ(counts[0] + counts[1], kKeys * kRounds);
    engine.barrier();
  });
}

}  // namespace
}  // namespace gradwire::kvstore
