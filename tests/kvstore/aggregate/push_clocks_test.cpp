#include "kvstore/aggregate/push_clocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "kvstore/runtime/staleness_counts.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Counts the worker's next push.
void push(PushClocks& clocks, std::uint32_t worker) { clocks.count(worker, clocks.next_step_of(worker)); }

PushClocks bounded(std::uint32_t workers, std::uint64_t bound) { return {workers, AsyncPolicy{bound}}; }

TEST(AsyncPolicy, IsReadAsItIsWritten) {
  for (const AsyncPolicy policy : {AsyncPolicy{}, AsyncPolicy{0}, AsyncPolicy{4}})
    EXPECT_EQ(parse_async_policy(to_string(policy)), policy);
  EXPECT_EQ(to_string({}), "at_once");
  EXPECT_EQ(to_string({4}), "at_once staleness_bound=4");
}

TEST(AsyncPolicy, RefusesOtherTextByName) {
  for (const char* const text :
       {"", "later", "at_once ", "at_once4", "at_once staleness_bound=", "at_once staleness_bound=-1",
        "at_once staleness_bound=4 ", "at_once staleness_bound=99999999999999999999"}) {
    EXPECT_THAT([&] { parse_async_policy(text); },
                testing::ThrowsMessage<std::invalid_argument>(HasSubstr("expected 'at_once' or")))
        << text;
  }
}

TEST(PushClocks, StalenessIsWhatOthersPushedSinceTheWorkerHadTheWeight) {
  PushClocks clocks(3, {});
  push(clocks, 0);
  EXPECT_EQ(clocks.staleness_of(0), 0U);
  push(clocks, 1);
  EXPECT_EQ(clocks.staleness_of(1), 1U);
  push(clocks, 2);
  EXPECT_EQ(clocks.staleness_of(2), 2U);
  clocks.show(2);
  push(clocks, 2);
  EXPECT_EQ(clocks.staleness_of(2), 0U);
  clocks.show(1);
  push(clocks, 0);
  push(clocks, 2);
  push(clocks, 1);
  EXPECT_EQ(clocks.staleness_of(1), 2U);
}

TEST(PushClocks, OwnPushesDoNotMakeAWorkerStale) {
  PushClocks clocks(2, {});
  for (int i = 0; i < 5; ++i) push(clocks, 0);  // without having seen the weight in between
  EXPECT_EQ(clocks.staleness_of(0), 0U);
  EXPECT_EQ(clocks.next_step_of(0), 5U);
  push(clocks, 1);
  EXPECT_EQ(clocks.staleness_of(1), 5U);
  push(clocks, 0);
  EXPECT_EQ(clocks.staleness_of(0), 1U);
}

TEST(PushClocks, WithoutABoundNobodyWaits) {
  PushClocks clocks(2, {});
  for (int i = 0; i < 1000; ++i) push(clocks, 1);
  EXPECT_THAT(clocks.awaited_by(1), IsEmpty());
}

TEST(PushClocks, WhoIsMoreThanTheBoundAheadWaitsForThoseBehind) {
  PushClocks clocks = bounded(3, 2);
  push(clocks, 0);
  push(clocks, 0);
  EXPECT_THAT(clocks.awaited_by(0), IsEmpty());
  push(clocks, 0);
  EXPECT_THAT(clocks.awaited_by(0), ElementsAre(1, 2));
  push(clocks, 2);
  EXPECT_THAT(clocks.awaited_by(0), ElementsAre(1));
  EXPECT_THAT(clocks.awaited_by(1), IsEmpty());
  push(clocks, 1);
  EXPECT_THAT(clocks.awaited_by(0), IsEmpty());
}

TEST(PushClocks, ABoundOfZeroIsLockstep) {
  PushClocks clocks = bounded(2, 0);
  push(clocks, 0);
  EXPECT_THAT(clocks.awaited_by(0), ElementsAre(1));
  push(clocks, 1);
  EXPECT_THAT(clocks.awaited_by(0), IsEmpty());
  EXPECT_THAT(clocks.awaited_by(1), IsEmpty());
}

TEST(PushClocks, AWorkerMayBeginWithALaterStep) {
  PushClocks clocks = bounded(2, 1);
  EXPECT_FALSE(clocks.has_pushed(0));
  clocks.count(0, 57);
  EXPECT_TRUE(clocks.has_pushed(0));
  EXPECT_EQ(clocks.next_step_of(0), 58U);
  EXPECT_EQ(clocks.staleness_of(0), 0U);
  EXPECT_THAT(clocks.awaited_by(0), ElementsAre(1));
  clocks.count(1, 56);
  EXPECT_EQ(clocks.staleness_of(1), 1U);
  EXPECT_THAT(clocks.awaited_by(0), IsEmpty());
}

TEST(PushClocks, MayAllBeginLater) {
  PushClocks clocks(2, AsyncPolicy{1}, 40);
  EXPECT_EQ(clocks.next_step_of(1), 40U);
  EXPECT_FALSE(clocks.has_begun());
  push(clocks, 0);
  EXPECT_TRUE(clocks.has_begun());
  EXPECT_THAT(clocks.awaited_by(0), IsEmpty());
  push(clocks, 0);
  EXPECT_THAT(clocks.awaited_by(0), ElementsAre(1));
  EXPECT_EQ(clocks.staleness_of(0), 0U);
}

TEST(AsyncWorkers, NobodyWaitsForWhoIsGone) {
  AsyncWorkers workers(3);
  PushClocks clocks = bounded(3, 0);
  push(clocks, 0);
  workers.forget(1);
  EXPECT_THAT(workers.awaited_by(0, clocks), ElementsAre(2));
  workers.forget(2);
  EXPECT_THAT(workers.awaited_by(0, clocks), IsEmpty());
}

TEST(AsyncWorkers, NobodyWaitsForWhoIsInACollectiveUntilAllAre) {
  AsyncWorkers workers(3);
  PushClocks clocks = bounded(3, 0);
  push(clocks, 0);
  workers.meet(1);
  EXPECT_THAT(workers.awaited_by(0, clocks), ElementsAre(2));
  workers.meet(2);
  EXPECT_THAT(workers.awaited_by(0, clocks), IsEmpty());
  workers.meet(0);
  EXPECT_THAT(workers.awaited_by(0, clocks), ElementsAre(1, 2));
}

TEST(AsyncWorkers, WhoseCollectiveHasFailedIsWaitedForAgainAndMayMeetAgain) {
  AsyncWorkers workers(3);
  PushClocks clocks = bounded(3, 0);
  push(clocks, 0);
  workers.meet(1);
  workers.come_back(1);
  EXPECT_THAT(workers.awaited_by(0, clocks), ElementsAre(1, 2));
  workers.meet(1);
  EXPECT_THAT([&] { workers.meet(1); }, testing::ThrowsMessage<std::invalid_argument>(
                                            testing::HasSubstr("meet: worker 1 has come already")));
  workers.come_back(1);
  workers.come_back(1);  // no-op
  for (const std::uint32_t worker : {0U, 2U}) workers.meet(worker);
  EXPECT_THAT(workers.awaited_by(0, clocks), ElementsAre(1)) << "2 is away yet: 1 has not met";
}

TEST(AsyncWorkers, AWeightsClocksAreMadeOnceByThePolicyThatHolds) {
  AsyncWorkers workers(2);
  EXPECT_FALSE(workers.has_policy());
  workers.set_policy(AsyncPolicy{1});
  ASSERT_TRUE(workers.has_policy());
  std::optional<PushClocks> clocks;
  push(workers.clocks_of(clocks, 40), 0);
  push(workers.clocks_of(clocks, 50), 0);
  EXPECT_EQ(clocks->next_step_of(0), 42U);
  EXPECT_EQ(clocks->next_step_of(1), 40U);
  EXPECT_THAT(workers.awaited_by(0, *clocks), ElementsAre(1));
}

TEST(StalenessCounts, CountsEach) {
  StalenessCounts counts;
  for (const std::uint64_t staleness : {3, 0, 3}) counts.add(staleness);
  EXPECT_THAT(counts.get(), ElementsAre(testing::Pair(0, 1), testing::Pair(3, 2)));
}

}  // namespace
}  // namespace gradwire::kvstore
