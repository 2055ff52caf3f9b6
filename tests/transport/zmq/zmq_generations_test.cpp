// A job over ZeroMQ that goes on without those that die, and takes in newcomers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/transport/ear.h"
#include "tests/transport/zmq/zmq_jobs.h"
#include "transport/zmq/scheduler.h"
#include "transport/zmq/zmq_messenger.h"

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;
using Joined = std::unique_ptr<Messenger>;

ZmqOptions lasting(std::uint32_t workers, std::uint32_t servers) {
  ZmqOptions options = job_of(workers, servers);
  options.on_failure = OnFailure::kContinue;
  options.liveness_timeout = 5s;
  options.regroup_timeout = 3s;
  return options;
}

std::future<Joined> member_later(const ZmqOptions& job, const Scheduler& scheduler, Role role,
                                 const std::string& member, std::optional<std::uint32_t> rank = {}) {
  ZmqOptions options = node_of(job, scheduler, role, rank);
  options.member = member;
  return join_later(options);
}

bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

std::string await_change(Messenger& messenger) {
  std::string text;
  const bool changed = eventually([&] {
    try {
      messenger.exchange("probe", "", kPatience);
    } catch (const MembershipChanged& change) {
      text = change.what();
      return true;
    }
    return false;
  });
  EXPECT_TRUE(changed);
  return text;
}

/// Of a server, which takes part in no exchange: one that left before it heard would have left the job.
void await_told(Messenger& server) {
  Ear ear;
  server.attach(ear);
  EXPECT_EQ(ear.failures(1).size(), 1u);
  server.detach();
}

TEST(ZmqGenerations, ADeathIsToldAndThoseWhoLiveGoOnInTheOrderOfTheirRanks) {
  const ZmqOptions job = lasting(3, 1);
  Scheduler scheduler(job);
  auto server = member_later(job, scheduler, Role::kServer, "s", 0);
  auto first = member_later(job, scheduler, Role::kWorker, "w0", 0);
  auto last = member_later(job, scheduler, Role::kWorker, "w2", 2);
  std::optional<RawWorker> victim;
  victim.emplace(scheduler, 3, 1, "w1");
  victim->await_roster();
  auto stream = std::make_unique<RawPeer>(victim->open_stream(0));
  Joined w0 = first.get(), w2 = last.get(), s = server.get();
  const World before = w0->world();
  Ear ear;
  w2->attach(ear);
  victim.reset();
  stream.reset();
  EXPECT_THAT(await_change(*w0),
              AllOf(HasSubstr("worker 1 (raw-host, pid 4711)"), HasSubstr("the job goes on")));
  EXPECT_THAT(ear.failures(1), ElementsAre(HasSubstr("worker 1")));
  w0.reset();
  w2->detach();
  w2.reset();
  await_told(*s);
  s.reset();
  last = member_later(job, scheduler, Role::kWorker, "w2");
  first = member_later(job, scheduler, Role::kWorker, "w0");
  server = member_later(job, scheduler, Role::kServer, "s");
  w0 = first.get();
  w2 = last.get();
  s = server.get();
  EXPECT_EQ(w0->self(), (Node{Role::kWorker, 0}));
  EXPECT_EQ(w2->self(), (Node{Role::kWorker, 1}));
  EXPECT_EQ(s->self(), (Node{Role::kServer, 0}));
  EXPECT_EQ(w0->world().workers, 2u);
  EXPECT_EQ(w0->world().generation, 2u);
  EXPECT_NE(w0->world().epoch, before.epoch);
  auto other = std::async(std::launch::async, [&] { return w2->exchange("names", "b", kPatience); });
  EXPECT_THAT(w0->exchange("names", "a", kPatience), ElementsAre("a", "b"));
  other.get();
}

TEST(ZmqGenerations, ANewcomerIsHeldUntilTheMembersMeetAgain) {
  const ZmqOptions job = lasting(1, 1);
  Scheduler scheduler(job);
  auto server = member_later(job, scheduler, Role::kServer, "s");
  auto worker = member_later(job, scheduler, Role::kWorker, "w0");
  Joined w0 = worker.get(), s = server.get();
  EXPECT_EQ(w0->newcomers(), 0u);
  auto newcomer = member_later(job, scheduler, Role::kWorker, "new", 0);
  EXPECT_TRUE(eventually([&] { return w0->newcomers() == 1; }));
  EXPECT_THAT(w0->exchange("still at work", "", kPatience), ElementsAre(""));
  w0->regroup("1 worker waits", Parting::kStays);
  EXPECT_THAT(await_change(*w0), HasSubstr("1 worker waits"));
  w0.reset();
  await_told(*s);
  s.reset();
  server = member_later(job, scheduler, Role::kServer, "s");
  worker = member_later(job, scheduler, Role::kWorker, "w0");
  w0 = worker.get();
  const Joined added = newcomer.get();
  EXPECT_EQ(w0->self().rank, 0u);
  EXPECT_EQ(added->self().rank, 1u);
  EXPECT_EQ(added->world().workers, 2u);
  EXPECT_EQ(w0->newcomers(), 0u);
  EXPECT_EQ(added->newcomers(), 0u) << "it would be let in a second time";
  server.get();
}

TEST(ZmqGenerations, ANewcomerThatMakesOtherCallsThanTheOthersLeavesAlone) {
  const ZmqOptions job = lasting(1, 0);
  Scheduler scheduler(job);
  Joined w0 = member_later(job, scheduler, Role::kWorker, "w0").get();
  auto newcomer = member_later(job, scheduler, Role::kWorker, "new");
  EXPECT_TRUE(eventually([&] { return w0->newcomers() == 1; }));
  w0->regroup("1 worker waits", Parting::kStays);
  await_change(*w0);
  w0.reset();
  auto again = member_later(job, scheduler, Role::kWorker, "w0");
  Joined added = newcomer.get();
  w0 = again.get();
  auto other = std::async(std::launch::async, [&] {
    bool is_change = true;
    std::string text;
    try {
      added->exchange("declare", "", kPatience);
    } catch (const TransportError& error) {
      is_change = dynamic_cast<const MembershipChanged*>(&error) != nullptr;
      text = error.what();
    }
    EXPECT_FALSE(is_change) << "it would come again, and again";
    return text;
  });
  const std::string words = "worker 0 is in 'barrier' while worker 1 is in 'declare'";
  EXPECT_THAT(error_of([&] { w0->exchange("barrier", "", kPatience); }),
              AllOf(HasSubstr(words), HasSubstr("the job goes on")));
  EXPECT_THAT(other.get(), HasSubstr(words));
  added.reset();
  w0.reset();
  w0 = member_later(job, scheduler, Role::kWorker, "w0").get();
  EXPECT_EQ(w0->world().workers, 1u);
}

TEST(ZmqGenerations, ANewcomerThatDiesWhileItWaitsHoldsNobody) {
  const ZmqOptions job = lasting(1, 0);
  Scheduler scheduler(job);
  const Joined w0 = member_later(job, scheduler, Role::kWorker, "w0").get();
  {
    RawWorker newcomer(scheduler, 1, 0, "new");
    newcomer.await_taken();
    EXPECT_TRUE(eventually([&] { return w0->newcomers() == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return w0->newcomers() == 0; }));
  EXPECT_THAT(w0->exchange("still at work", "", kPatience), ElementsAre(""));
}

TEST(ZmqGenerations, WhoFailsItselfIsNamedAndTheOthersGoOn) {
  const ZmqOptions job = lasting(2, 0);
  Scheduler scheduler(job);
  const auto pair_later = [&](const std::string& member) {
    ZmqOptions options = node_of(job, scheduler, Role::kWorker, {});
    options.member = member;
    return std::async(std::launch::async, [options] { return connect_zmq_pair(options); });
  };
  auto first = pair_later("w0"), second = pair_later("w1");
  NodePair survivor = first.get(), failing = second.get();
  const bool second_came_first = survivor.worker->self().rank == 1;
  const std::string member = second_came_first ? "w1" : "w0";
  if (second_came_first) std::swap(survivor, failing);
  failing.worker->regroup("ended with ValueError: no such file", Parting::kLeaves);
  EXPECT_THAT(await_change(*survivor.worker),
              AllOf(HasSubstr("worker 1 ("), HasSubstr("ended with ValueError: no such file")));
  failing = {};
  survivor = {};
  survivor = pair_later(member).get();
  EXPECT_EQ(survivor.worker->world().workers, 1u);
  EXPECT_EQ(survivor.server->world(), survivor.worker->world());
  EXPECT_EQ(survivor.worker->world().generation, 2u);
}

TEST(ZmqGenerations, ADeathAfterAllOthersHaveComeToTheEndIsNoFailure) {
  const ZmqOptions job = lasting(2, 1);
  Scheduler scheduler(job);
  auto server = member_later(job, scheduler, Role::kServer, "s", 0);
  auto worker = member_later(job, scheduler, Role::kWorker, "w0", 0);
  std::optional<RawWorker> victim;
  victim.emplace(scheduler, 2, 1, "w1");
  victim->await_roster();
  auto stream = std::make_unique<RawPeer>(victim->open_stream(0));
  Joined w0 = worker.get(), s = server.get();
  Ear ear;
  s->attach(ear);
  w0.reset();
  victim.reset();
  stream.reset();
  EXPECT_TRUE(ear.hears_goodbye_of({Role::kWorker, 1}));
  EXPECT_THAT(ear.failures(0), IsEmpty());
  s->detach();
  s.reset();
  EXPECT_EQ(error_of([&] { EXPECT_TRUE(scheduler.wait_for(kPatience)); }), "no error");
}

TEST(ZmqGenerations, AnErrorAfterAllOthersHaveComeToTheEndIsNoFailure) {
  const ZmqOptions job = lasting(2, 0);
  Scheduler scheduler(job);
  auto first = member_later(job, scheduler, Role::kWorker, "w0");
  auto second = member_later(job, scheduler, Role::kWorker, "w1");
  Joined w0 = first.get(), w1 = second.get();
  w0.reset();
  w1->regroup("ended with OSError: no space left", Parting::kLeaves);
  w1.reset();
  EXPECT_EQ(error_of([&] { EXPECT_TRUE(scheduler.wait_for(kPatience)); }), "no error");
}

TEST(ZmqGenerations, AnotherMayComeAtOnceInThePlaceOfOneThatDiesInTheFirstRendezvous) {
  const ZmqOptions job = lasting(2, 0);
  Scheduler scheduler(job);
  std::optional<RawWorker> victim;
  victim.emplace(scheduler, 2, 0, "w1");
  victim->await_taken();
  victim.reset();
  auto other = member_later(job, scheduler, Role::kWorker, "w1 again", kRawNode.rank);
  auto first = member_later(job, scheduler, Role::kWorker, "w0", 0);
  const Joined w0 = first.get(), w1 = other.get();
  EXPECT_EQ(w1->self(), kRawNode);
}

TEST(ZmqGenerations, BelowTheFewestWorkersTheJobFailsAndSaysWhy) {
  ZmqOptions job = lasting(2, 0);
  job.min_workers = 2;
  job.regroup_timeout = 500ms;
  Scheduler scheduler(job);
  auto joining = member_later(job, scheduler, Role::kWorker, "w0", 0);
  std::optional<RawWorker> victim;
  victim.emplace(scheduler, 2, 0, "w1");
  victim->await_roster();
  Joined w0 = joining.get();
  victim.reset();
  await_change(*w0);
  w0.reset();
  joining = member_later(job, scheduler, Role::kWorker, "w0");
  EXPECT_THAT(error_of([&] { joining.get(); }),
              AllOf(HasSubstr("1 workers are there"), HasSubstr("min_workers=2"), HasSubstr("worker 1 (")));
  EXPECT_THAT(error_of([&] { scheduler.wait_for(kPatience); }), HasSubstr("min_workers=2"));
}

TEST(ZmqGenerations, AWorkerThatDiesAgainDuringTheRendezvousIsDropped) {
  const ZmqOptions job = lasting(3, 0);
  Scheduler scheduler(job);
  auto first = member_later(job, scheduler, Role::kWorker, "w0", 0);
  auto last = member_later(job, scheduler, Role::kWorker, "w2", 2);
  std::optional<RawWorker> victim;
  victim.emplace(scheduler, 3, 0, "w1");
  victim->await_roster();
  Joined w0 = first.get(), w2 = last.get();
  victim.reset();
  await_change(*w0);
  await_change(*w2);
  w2.reset();  // and never comes back
  w0.reset();
  w0 = member_later(job, scheduler, Role::kWorker, "w0").get();
  EXPECT_EQ(w0->world().workers, 1u);
}

TEST(ZmqGenerations, TheSchedulersDeathStillEndsTheJob) {
  const ZmqOptions job = lasting(1, 0);
  auto scheduler = std::make_unique<Scheduler>(job);
  const Joined w0 = member_later(job, *scheduler, Role::kWorker, "w0").get();
  scheduler.reset();
  EXPECT_TRUE(
      eventually([&] { return !error_of([&] { w0->exchange("probe", "", 100ms); }).starts_with("no"); }));
  bool is_change = true;
  try {
    w0->exchange("probe", "", 100ms);
  } catch (const MembershipChanged&) {
  } catch (const std::exception&) {
    is_change = false;
  }
  EXPECT_FALSE(is_change);
}

TEST(ZmqGenerations, AWorkerThatWouldEndTheJobIsRefused) {
  const ZmqOptions job = lasting(1, 0);
  Scheduler scheduler(job);
  ZmqOptions options = node_of(job_of(1, 0), scheduler, Role::kWorker, {});
  EXPECT_THAT(error_of([&] { connect_zmq(options); }),
              HasSubstr("says on_failure=abort where the scheduler has on_failure=continue"));
}

// It says no goodbye, and would be awaited.
TEST(ZmqGenerations, WhoFailsItselfWhileTheOthersMeetAgainIsNotAwaited) {
  ZmqOptions job = lasting(3, 0);
  job.regroup_timeout = 60s;  // longer than a rendezvous waits
  Scheduler scheduler(job);
  auto a = member_later(job, scheduler, Role::kWorker, "w0"),
       b = member_later(job, scheduler, Role::kWorker, "w1"),
       c = member_later(job, scheduler, Role::kWorker, "w2");
  Joined first = a.get(), second = b.get(), survivor = c.get();
  first->regroup("ended with OSError: no space left", Parting::kLeaves);
  await_change(*second);
  second->regroup("ended with KeyError: 'x'", Parting::kLeaves);
  await_change(*survivor);
  for (Joined* each : {&first, &second, &survivor}) each->reset();
  survivor = member_later(job, scheduler, Role::kWorker, "w2").get();
  EXPECT_EQ(survivor->world().workers, 1u);
  EXPECT_EQ(survivor->world().generation, 2u);
}

}  // namespace
}  // namespace gradwire::transport
