#include "transport/decorators/fault_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradwire::transport {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using testing::HasSubstr;

std::string refusal(std::string_view text) {
  try {
    parse_faults(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "taken";
}

TEST(FaultSpec, EveryFaultIsRead) {
  FaultSpec expected;
  expected.seed = 7;
  expected.drop = 0.01;
  expected.duplicate = 0.02;
  expected.reorder = 0.5;
  expected.corrupt = 1;
  expected.delay = microseconds(5000);
  expected.delayed = 0.1;
  expected.partitions = {{{{Role::kWorker, 1}, {Role::kServer, {}}},
                          {{Role::kServer, 0}},
                          milliseconds(10'000),
                          milliseconds(2000)}};
  expected.slow = {{{Role::kWorker, 2}, 1.25e6, microseconds(3)},
                   {{Role::kServer, {}}, 125, microseconds(0)}};
  expected.kills = {{{Role::kWorker, 1}, FaultEvent::kPush, 100},
                    {{Role::kScheduler, {}}, FaultEvent::kStart, 1}};
  EXPECT_EQ(parse_faults("seed=7,drop=1%,duplicate=0.02,reorder=50%,corrupt=100%,delay=5ms@10%,"
                         "partition=worker:1+server:*|server:0@10s+2s,slow=worker:2@10Mbit+3us,"
                         "slow=server:*@1kbit,kill=worker:1@push:100,kill=scheduler@start"),
            expected);
}

TEST(FaultSpec, WhatIsWrongIsSaidWithWhatWouldBeRight) {
  EXPECT_THAT(refusal("drop=2x"),
              testing::AllOf(HasSubstr("drop=2x"), HasSubstr("0 to 100%"), HasSubstr("drop=1%")));
  EXPECT_THAT(refusal("drop=101%"), HasSubstr("0 to 100%"));
  EXPECT_THAT(refusal("drop=-1"), HasSubstr("0 to 100%"));
  EXPECT_THAT(refusal("drop=nan"), HasSubstr("0 to 100%"));
  EXPECT_THAT(refusal("drop=1%,drop=2%"), HasSubstr("each fault once"));
  EXPECT_THAT(refusal("droop=1%"), HasSubstr("seed=, drop="));
  EXPECT_THAT(refusal(""), HasSubstr("seed=7,drop=1%"));
  EXPECT_THAT(refusal("seed=-1"), HasSubstr("seed=7"));
  EXPECT_THAT(refusal("delay=5ms"), HasSubstr("delay=5ms@10%"));
  EXPECT_THAT(refusal("delay=5@10%"), HasSubstr("a time in us, ms, s or min"));
  EXPECT_THAT(refusal("partition=worker:1@1s+1s"), HasSubstr("partition=worker:1|"));
  EXPECT_THAT(refusal("partition=scheduler|server:0@1s+1s"), HasSubstr("not disturbed"));
  EXPECT_THAT(refusal("slow=worker:2@fast"), HasSubstr("slow=worker:2@10mbit"));
  EXPECT_THAT(refusal("kill=worker@push"), HasSubstr("worker:1, server:*, or scheduler"));
  EXPECT_THAT(refusal("kill=worker:1@lunch"), HasSubstr("start, init, push"));
  EXPECT_THAT(refusal("kill=worker:1@push:0"), HasSubstr("kill=worker:1@push:100"));
}

TEST(FaultSpec, AnEventThatANodeNeverSeesIsRefused) {
  EXPECT_THAT(refusal("kill=scheduler@push"),
              HasSubstr("of the scheduler: start, barrier, heartbeat, leave"));
  EXPECT_THAT(refusal("kill=server:0@heartbeat"), HasSubstr("of servers: start, init, push, "));
  EXPECT_THAT(refusal("kill=server:0@barrier"),
              HasSubstr("of servers: start, init, push, reply, pull, checkpoint, blob, leave; as in"));
  EXPECT_EQ(refusal("kill=worker:0@barrier"), "taken");
}

TEST(FaultSpec, NodesThatAJobHasNotAreRefused) {
  const auto refusal_of_two = [](const char* text) -> std::string {
    try {
      require_members(parse_faults(text), 2, 1);
      return "";
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
  };
  const char* kWorkers = "faults: there is no worker:2 in this job, which has worker:0 to worker:1";
  EXPECT_EQ(refusal_of_two("kill=worker:2@push"), kWorkers);
  EXPECT_EQ(refusal_of_two("drop=1%,slow=worker:2@1mbit"), kWorkers);
  EXPECT_EQ(refusal_of_two("partition=worker:2|server:0@1s+1s"), kWorkers);
  EXPECT_THAT(refusal_of_two("partition=worker:1|server:0+server:1@1s+1s"),
              HasSubstr("there is no server:1 in this job, which has server:0"));
  EXPECT_EQ(refusal_of_two("kill=worker:1@push,slow=server:*@1mbit,kill=scheduler@leave"), "");
}

}  // namespace
}  // namespace gradwire::transport
