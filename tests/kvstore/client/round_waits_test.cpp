#include "kvstore/client/round_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kvstore/client/tensor_rounds.h"
#include "transport/membership/wait_graph.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using For = Callers::Wait::For;
using Verb = Operation::Verb;

class Waits : public testing::Test {
 protected:
  Tensor& start(KeyId key, Verb verb) {
    Operation operation;
    operation.verb = verb;
    begin(tensors_[key], std::move(operation), tensors_, pending_);
    active_.insert(&tensors_[key]);
    return tensors_[key];
  }
  transport::Wait describe(const Callers::Wait& wait, std::optional<AsyncPolicy> async = std::nullopt) {
    transport::WaitReport report;
    RoundWaits(tensors_, active_, async).describe(wait, report);
    return report.waits.at(0);
  }

  void SetUp() override {
    for (const char* name : {"a", "b"}) tensors_.add({name, {20}}, three_parts());
  }

  PendingRequests pending_{transport::Role::kServer, {}};
  TensorTable tensors_{0};
  std::set<Tensor*> active_;
};

TEST_F(Waits, ForAPushNeedTheOthersToBeginItsRound) {
  start(1, Verb::kPushPull);
  const auto wait = describe({For::kKey, "push_pull", 1});
  EXPECT_EQ(wait.what, "push_pull, round 0 of key 'b'");
  EXPECT_THAT(wait.needs, ElementsAre("key 1 round 0"));
}

TEST_F(Waits, ForAPullNeedNobody) {
  start(1, Verb::kPull);
  EXPECT_THAT(describe({For::kKey, "pull", 1}).needs, IsEmpty());
}

TEST_F(Waits, ForATurnNeedTheRoundOnlyWhileAPushIsHeldBehindIt) {
  Tensor& tensor = start(0, Verb::kPush);
  EXPECT_THAT(describe({For::kTurn, "push", 0}).needs, IsEmpty());
  tensor.held_count = 1;
  EXPECT_THAT(describe({For::kTurn, "push", 0}).needs, ElementsAre("key 0 round 0"));
}

TEST_F(Waits, ForAllOwnRoundsNeedEachOfThem) {
  start(0, Verb::kPush);
  start(1, Verb::kPushPull);
  EXPECT_THAT(describe({For::kOwnRounds, "barrier"}).needs,
              testing::UnorderedElementsAre("key 0 round 0", "key 1 round 0"));
}

TEST_F(Waits, WhereServersApplyPushesAtOnceNeedWhatTheBoundAllows) {
  Tensor& tensor = start(0, Verb::kPush);
  tensor.step = 8;  // the eighth is in flight
  EXPECT_THAT(describe({For::kKey, "push", 0}, AsyncPolicy{}).needs, IsEmpty());
  AsyncPolicy bounded;
  bounded.staleness_bound = 3;
  EXPECT_THAT(describe({For::kKey, "push", 0}, bounded).needs, ElementsAre("key 0 round 4"));
}

TEST_F(Waits, ARoundHasBegunWhenItsPushWasSubmitted) {
  Tensor& tensor = start(0, Verb::kPush);
  const RoundWaits waits(tensors_, active_, std::nullopt);
  EXPECT_TRUE(waits.has_begun("key 0 round 0", {}));
  EXPECT_FALSE(waits.has_begun("key 0 round 1", {}));
  tensor.waiting.emplace_back().verb = Verb::kPush;
  tensor.waiting.emplace_back().verb = Verb::kPull;
  EXPECT_TRUE(waits.has_begun("key 0 round 1", {}));
  EXPECT_FALSE(waits.has_begun("key 0 round 2", {}));
  EXPECT_FALSE(waits.has_begun("key 7 round 0", {}));
  EXPECT_FALSE(waits.has_begun("table 0 round 0", {}));
}

TEST_F(Waits, AWorkerThatHasJoinedHoldsNobodyUp) {
  const RoundWaits waits(tensors_, active_, std::nullopt);
  Callers::Standstill standing;
  standing.waits.push_back({For::kExchange, "barrier"});
  EXPECT_FALSE(waits.has_begun("key 0 round 5", standing));
  standing.waits.push_back({For::kExchange, "join"});
  EXPECT_TRUE(waits.has_begun("key 0 round 5", standing));
}

}  // namespace
}  // namespace gradwire::kvstore
