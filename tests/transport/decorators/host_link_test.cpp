#include "transport/decorators/host_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/transport/ear.h"
#include "tests/transport/frames.h"
#include "transport/inproc/inproc.h"

namespace gradwire::transport {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ranks = std::vector<std::uint32_t>;

TEST(Hosts, AreInOrderOfTheirLowestRanks) {
  const std::vector<std::string> identities = {"b", "a", "b", "c", "a"};
  const Hosts hosts = group_by_host(identities);
  EXPECT_THAT(hosts, ElementsAre(Ranks{0, 2}, Ranks{1, 4}, Ranks{3}));
  EXPECT_EQ(leaders_of(hosts), (Ranks{0, 1, 3}));
  EXPECT_EQ(host_of(hosts, 4), (Ranks{1, 4}));
}

TEST(Hosts, ThatHaveNoNameAreNobodyElses) {
  const std::vector<std::string> identities = {"", "", "a"};
  EXPECT_THAT(group_by_host(identities), ElementsAre(Ranks{0}, Ranks{1}, Ranks{2}));
}

/// Workers 1 and 3 of a job of 4, on one host.
struct HostOfTwo {
  InprocNetwork job{4, 0};
  InprocNetwork host{2, 1};
  std::unique_ptr<Messenger> first_in_job = job.connect({Role::kWorker, 1});
  std::unique_ptr<Messenger> second_in_job = job.connect({Role::kWorker, 3});
  std::unique_ptr<Messenger> second = node(*second_in_job, {Role::kWorker, 1});
  std::unique_ptr<Messenger> server = node(*first_in_job, {Role::kServer, 0});

  std::unique_ptr<Messenger> node(Messenger& in_job, Node in_host) {
    return with_ranks_of(in_job, {1, 3}, host.connect(in_host), std::chrono::milliseconds(200));
  }
};

TEST(HostLink, HasTheRanksOfTheJob) {
  HostOfTwo link;
  EXPECT_EQ(link.second->self(), (Node{Role::kWorker, 3}));
  EXPECT_EQ(link.server->self(), (Node{Role::kServer, 1}));
  EXPECT_EQ(link.second->world().workers, 4U);

  Ear at_server, at_worker;
  link.server->attach(at_server);
  link.second->attach(at_worker);
  link.second->send({Role::kServer, 1}, one(make_frame(Kind::kPush, 7)));
  EXPECT_EQ(at_server.take_frames(1).at(0).from, (Node{Role::kWorker, 3}));
  link.server->send({Role::kWorker, 3}, one(make_frame(Kind::kReply, 7)));
  EXPECT_EQ(at_worker.take_frames(1).at(0).from, (Node{Role::kServer, 1}));
  EXPECT_THROW(link.server->send({Role::kWorker, 0}, one(make_frame(Kind::kReply, 7))),
               std::invalid_argument);
  link.second->leave(kPatience);
  EXPECT_TRUE(at_server.hears_goodbye_of({Role::kWorker, 3}));
  link.server->detach();
  link.second->detach();
}

TEST(HostLink, TellsTheJobOfAFailureThatTheJobDoesNotNotice) {
  HostOfTwo link;
  Ear in_link, in_job;
  link.second->attach(in_link);
  link.first_in_job->attach(in_job);
  const auto stranger = link.host.connect({Role::kWorker, 0});
  stranger->fail("the cable is cut");
  const auto failures = in_job.failures(1);
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_THAT(failures[0], HasSubstr("worker 3 lost the workers of its host: the cable is cut"));
  EXPECT_TRUE(in_link.failures(0).empty());  // rounds hear it from the job
  link.first_in_job->detach();
  link.second->detach();
}

// Whoever died is named by the job, with the rank that people know.
TEST(HostLink, ThatHasFailedFailsNoSender) {
  HostOfTwo link;
  link.host.connect({Role::kWorker, 0})->fail("worker 0 of the host is dead");
  EXPECT_NO_THROW(link.second->send({Role::kServer, 1}, one(make_frame(Kind::kPush, 7))));
  EXPECT_NO_THROW(link.server->send({Role::kWorker, 3}, one(make_frame(Kind::kReply, 7))));
}

// The job says why a leader left, over other connections: its word may come later, and must come first.
TEST(HostLink, TellsOfALeaderThatLeftOnceTheJobHasHadTimeToSayWhy) {
  HostOfTwo link;
  Ear in_link;
  link.second->attach(in_link);
  const auto began = std::chrono::steady_clock::now();
  link.server->leave(kPatience);
  ASSERT_TRUE(in_link.hears_goodbye_of({Role::kServer, 1}));
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(200));
  link.second->detach();
}

TEST(HostLink, TellsNobodyOfALeaderOnceItIsDetached) {
  HostOfTwo link;
  Ear in_link;
  link.second->attach(in_link);
  link.server->leave(kPatience);
  link.second->detach();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_THAT(in_link.goodbyes(0), testing::IsEmpty());
}

TEST(HostLink, ThatEndsWithItsServerIsNoFailure) {
  HostOfTwo link;
  Ear in_link, in_job;
  link.second->attach(in_link);
  link.first_in_job->attach(in_job);
  link.server->leave(kPatience);
  ASSERT_TRUE(in_link.hears_goodbye_of({Role::kServer, 1}));
  const auto stranger = link.host.connect({Role::kWorker, 0});
  stranger->fail("its rendezvous ends");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_TRUE(in_job.failures(0).empty());
  link.first_in_job->detach();
  link.second->detach();
}

}  // namespace
}  // namespace gradwire::transport
