// Regroup: who is awaited, who is back, who is new, and when that is enough.
#include "transport/membership/regroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;
using namespace std::chrono_literals;
using Verdict = Regroup::Verdict;

constexpr Regroup::Time kStart{100s};

Hello hello_of(const std::string& member, Role role = Role::kWorker, const std::string& pair = {}) {
  Hello hello;
  hello.role = role;
  hello.host = "host-a";
  hello.pid = 7;
  hello.pair = pair;
  hello.member = member;
  if (role == Role::kServer) hello.endpoint = "tcp://10.0.0.1:1";
  return hello;
}

std::vector<std::pair<std::string, Node>> ranks_of(const Regroup& regroup) {
  std::vector<std::pair<std::string, Node>> ranks;
  for (const auto& member : regroup.members()) ranks.emplace_back(member.peer, member.node);
  return ranks;
}

std::pair<std::string, Node> worker(const std::string& peer, std::uint32_t rank) {
  return {peer, {Role::kWorker, rank}};
}

/// Of a generation of these workers, "m0", "m1", ..., and one server "s0".
Regroup after(std::initializer_list<std::uint32_t> living, std::uint32_t min_workers = 1) {
  Regroup regroup({min_workers, 10s, 60s}, false, 1);
  for (const std::uint32_t rank : living) {
    std::string member = std::to_string(rank);
    member.insert(member.begin(), 'm');
    regroup.expect(member, {Role::kWorker, rank}, kStart);
  }
  regroup.expect("s0", {Role::kServer, 0}, kStart);
  regroup.open(kStart);
  return regroup;
}

TEST(Regroup, IsCompleteWhenAllThatLiveAreBackAndKeepsTheirOrder) {
  Regroup regroup = after({0, 2, 3});
  EXPECT_EQ(regroup.take("c", hello_of("m3")), std::nullopt);
  EXPECT_EQ(regroup.take("a", hello_of("m0")), std::nullopt);
  EXPECT_EQ(regroup.judge(kStart), Verdict::kWaiting);
  EXPECT_EQ(regroup.awaited(), "server 0 and worker 2 to come back (2 workers are here)");
  EXPECT_EQ(regroup.take("s", hello_of("s0", Role::kServer)), std::nullopt);
  EXPECT_EQ(regroup.take("b", hello_of("m2")), std::nullopt);
  EXPECT_EQ(regroup.judge(kStart), Verdict::kComplete);
  EXPECT_THAT(ranks_of(regroup), ElementsAre(worker("a", 0), worker("b", 1), worker("c", 2),
                                             std::pair("s", Node{Role::kServer, 0})));
}

TEST(Regroup, NewcomersAreBehindThoseThatWereThere) {
  Regroup regroup({1, 10s, 60s}, false, 0);
  EXPECT_EQ(regroup.take("x", hello_of("new")), std::nullopt);  // before it is open
  EXPECT_EQ(regroup.newcomers(), 1u);
  regroup.expect("m1", {Role::kWorker, 1}, kStart);
  regroup.open(kStart);
  EXPECT_EQ(regroup.judge(kStart), Verdict::kWaiting);
  EXPECT_EQ(regroup.take("b", hello_of("m1")), std::nullopt);
  EXPECT_EQ(regroup.judge(kStart), Verdict::kComplete);
  EXPECT_THAT(ranks_of(regroup), ElementsAre(worker("b", 0), worker("x", 1)));
}

TEST(Regroup, ANewcomerThatDiesWhileItWaitsIsForgotten) {
  Regroup regroup = after({0});
  EXPECT_EQ(regroup.take("x", hello_of("new")), std::nullopt);
  regroup.forget("x");
  EXPECT_EQ(regroup.newcomers(), 0u);
  EXPECT_EQ(regroup.take("s", hello_of("s0", Role::kServer)), std::nullopt);
  EXPECT_EQ(regroup.take("a", hello_of("m0")), std::nullopt);
  EXPECT_EQ(regroup.judge(kStart), Verdict::kComplete);
  EXPECT_THAT(ranks_of(regroup), ElementsAre(worker("a", 0), std::pair("s", Node{Role::kServer, 0})));
}

TEST(Regroup, WhoDiesDuringItIsAwaitedNoLonger) {
  Regroup regroup = after({0, 1});
  EXPECT_EQ(regroup.take("s", hello_of("s0", Role::kServer)), std::nullopt);
  EXPECT_EQ(regroup.take("a", hello_of("m0")), std::nullopt);
  EXPECT_EQ(regroup.take("b", hello_of("m1")), std::nullopt);
  regroup.forget("a");
  EXPECT_EQ(regroup.judge(kStart), Verdict::kComplete);
  EXPECT_THAT(ranks_of(regroup), ElementsAre(worker("b", 0), std::pair("s", Node{Role::kServer, 0})));
}

TEST(Regroup, TheSilentAreAwaitedUntilTheDeadlineAndThoseWhoLiveLonger) {
  Regroup regroup = after({0, 1, 2});
  EXPECT_EQ(regroup.take("s", hello_of("s0", Role::kServer)), std::nullopt);
  EXPECT_EQ(regroup.take("a", hello_of("m0")), std::nullopt);
  EXPECT_EQ(regroup.judge(kStart + 9s), Verdict::kWaiting);
  regroup.heard("m2", kStart + 9s);  // it computes
  EXPECT_EQ(regroup.judge(kStart + 11s), Verdict::kWaiting);
  EXPECT_EQ(regroup.judge(kStart + 19s), Verdict::kComplete);
  regroup.heard("m2", kStart + 59s);
  EXPECT_EQ(regroup.judge(kStart + 59s), Verdict::kWaiting);
  EXPECT_EQ(regroup.judge(kStart + 60s), Verdict::kComplete);
}

TEST(Regroup, BelowTheFewestWorkersItWaitsForNewcomersAndThenFails) {
  Regroup regroup = after({0}, 2);
  EXPECT_EQ(regroup.take("s", hello_of("s0", Role::kServer)), std::nullopt);
  EXPECT_EQ(regroup.take("a", hello_of("m0")), std::nullopt);
  EXPECT_EQ(regroup.judge(kStart), Verdict::kWaiting);
  EXPECT_EQ(regroup.awaited(), "newcomers, up to min_workers=2 (1 worker is here)");
  Regroup enough = regroup;
  EXPECT_EQ(enough.take("x", hello_of("new")), std::nullopt);
  EXPECT_EQ(enough.judge(kStart), Verdict::kComplete);
  EXPECT_EQ(regroup.judge(kStart + 10s), Verdict::kFailed);
  EXPECT_THAT(regroup.fault(),
              AllOf(HasSubstr("1 workers are there after 10 s"), HasSubstr("min_workers=2")));
}

TEST(Regroup, NewcomersAloneHaveNoWeights) {
  Regroup regroup = after({0});
  EXPECT_EQ(regroup.take("s", hello_of("s0", Role::kServer)), std::nullopt);
  EXPECT_EQ(regroup.take("a", hello_of("m0")), std::nullopt);
  EXPECT_EQ(regroup.take("x", hello_of("new")), std::nullopt);
  regroup.forget("a");
  EXPECT_EQ(regroup.judge(kStart), Verdict::kFailed);
  EXPECT_THAT(regroup.fault(), HasSubstr("no worker is left of those that had the weights"));
}

TEST(Regroup, AServerThatDoesNotComeBackEndsTheJob) {
  Regroup regroup = after({0});
  EXPECT_EQ(regroup.take("a", hello_of("m0")), std::nullopt);
  EXPECT_EQ(regroup.judge(kStart + 10s), Verdict::kFailed);
  EXPECT_THAT(regroup.fault(), HasSubstr("server 0 did not come back within 10 s"));
}

TEST(Regroup, AWorkerThatHostsAServerIsThereWhenBothAre) {
  Regroup regroup({1, 10s, 60s}, true, 2);
  EXPECT_EQ(regroup.take("x", hello_of("new", Role::kWorker, "p")), std::nullopt);
  EXPECT_EQ(regroup.newcomers(), 0u);
  EXPECT_EQ(regroup.take("y", hello_of("new", Role::kServer, "p")), std::nullopt);
  EXPECT_EQ(regroup.newcomers(), 1u);
  regroup.expect("m1", {Role::kWorker, 1}, kStart);
  regroup.open(kStart);
  EXPECT_EQ(regroup.take("b", hello_of("m1", Role::kWorker, "q")), std::nullopt);
  EXPECT_EQ(regroup.judge(kStart), Verdict::kWaiting);
  EXPECT_EQ(regroup.take("a", hello_of("m1", Role::kServer, "q")), std::nullopt);
  regroup.forget("a");  // and its worker comes again
  EXPECT_EQ(regroup.judge(kStart), Verdict::kWaiting);
  EXPECT_EQ(regroup.take("c", hello_of("m1", Role::kServer, "q")), std::nullopt);
  EXPECT_EQ(regroup.judge(kStart), Verdict::kComplete);
  EXPECT_THAT(ranks_of(regroup), ElementsAre(worker("b", 0), std::pair("c", Node{Role::kServer, 0}),
                                             worker("x", 1), std::pair("y", Node{Role::kServer, 1})));
}

TEST(Regroup, AMemberThatComesAgainIsThereOnce) {
  Regroup regroup = after({0});
  EXPECT_EQ(regroup.take("s", hello_of("s0", Role::kServer)), std::nullopt);
  EXPECT_EQ(regroup.take("a", hello_of("m0")), std::nullopt);
  EXPECT_EQ(regroup.take("b", hello_of("m0")), std::nullopt);
  regroup.forget("a");  // the connection that it gave up
  EXPECT_EQ(regroup.judge(kStart), Verdict::kComplete);
  EXPECT_THAT(ranks_of(regroup), ElementsAre(worker("b", 0), std::pair("s", Node{Role::kServer, 0})));
}

TEST(Regroup, RefusesWhoDoesNotFit) {
  Regroup regroup = after({0});
  EXPECT_THAT(regroup.take("x", hello_of("")), Optional(HasSubstr("says on_failure=abort")));
  EXPECT_THAT(regroup.take("x", hello_of("n", Role::kWorker, "p")),
              Optional(HasSubstr("hosts a server of its own, unlike the job's workers")));
  EXPECT_THAT(regroup.take("x", hello_of("n", Role::kServer)), Optional(HasSubstr("is one too many")));
  Hello old = hello_of("n");
  old.version = kVersion + 1;
  EXPECT_THAT(regroup.take("x", old), Optional(HasSubstr("install the same gradwire everywhere")));
}

TEST(Regroup, RefusesANewcomerWhoseSettingsAreNotTheJobs) {
  Regroup regroup({1, 10s, 60s}, false, 0, {"GRADWIRE_PARTITION_BYTES=1048576", "GRADWIRE_COMPRESSION=2bit"});
  Hello newcomer = hello_of("new");
  newcomer.settings = {"GRADWIRE_PARTITION_BYTES=1048576", "GRADWIRE_COMPRESSION="};
  EXPECT_THAT(
      regroup.take("x", newcomer),
      Optional(AllOf(HasSubstr("a worker (host-a, pid 7) says GRADWIRE_COMPRESSION= where the job has "
                               "GRADWIRE_COMPRESSION=2bit"),
                     HasSubstr("--env GRADWIRE_COMPRESSION=2bit"))));
  EXPECT_EQ(regroup.newcomers(), 0u);
  newcomer.settings[1] = "GRADWIRE_COMPRESSION=2bit";
  EXPECT_EQ(parse_hello(to_text(newcomer)), newcomer);
  EXPECT_EQ(regroup.take("x", newcomer), std::nullopt);
  EXPECT_EQ(regroup.newcomers(), 1u);
}

}  // namespace
}  // namespace gradwire::transport
