#include "transport/zmq/scheduler_peers.h"

#include <gtest/gtest.h>

namespace gradwire::transport {
namespace {

SchedulerPeer peer_of(Role role, std::uint32_t rank, const std::string& member = {}) {
  SchedulerPeer peer;
  peer.node = {role, rank};
  peer.hello.member = member;
  return peer;
}

TEST(SchedulerPeers, ANodeWithoutARankIsNamedByItsProcess) {
  Hello hello;
  hello.host = "alpha";
  hello.pid = 12;
  EXPECT_EQ(arrival_name(hello), "a worker (alpha, pid 12)");
  hello.role = Role::kServer;
  EXPECT_EQ(arrival_name(hello), "a server (alpha, pid 12)");
}

TEST(SchedulerPeers, AWorkerIsFoundWhileItCounts) {
  SchedulerPeers peers{{"a", peer_of(Role::kServer, 1)}, {"b", peer_of(Role::kWorker, 1)}};
  EXPECT_EQ(worker_of(peers, 1), "b");
  EXPECT_EQ(worker_of(peers, 0), "");
  peers["b"].standing = Standing::kFormer;
  EXPECT_EQ(worker_of(peers, 1), "");
}

TEST(SchedulerPeers, AllOfARoleHaveLeftWhenNoneCounts) {
  SchedulerPeers peers{{"a", peer_of(Role::kServer, 0)}, {"b", peer_of(Role::kWorker, 0)}};
  EXPECT_FALSE(have_all_left(peers, Role::kWorker));
  peers["b"].left = true;
  EXPECT_TRUE(have_all_left(peers, Role::kWorker));
  EXPECT_FALSE(have_all_left(peers, Role::kServer));
  peers["a"].standing = Standing::kSpare;
  EXPECT_TRUE(have_all_left(peers, Role::kServer));
}

TEST(SchedulerPeers, OthersHaveLeftOnlyIfThereWereOthers) {
  SchedulerPeers peers{{"a", peer_of(Role::kWorker, 0, "m0")}, {"b", peer_of(Role::kWorker, 1, "m1")}};
  EXPECT_FALSE(have_all_workers_left_but(peers, {"m1"}));
  EXPECT_FALSE(have_all_workers_left_but(peers, {"m0", "m1"}));  // nobody has had the job's end
  peers["a"].left = true;
  EXPECT_TRUE(have_all_workers_left_but(peers, {"m1"}));
}

TEST(SchedulerPeers, ASpareServerHearsNewsAndDoesNotCount) {
  SchedulerPeer peer = peer_of(Role::kServer, 0);
  EXPECT_TRUE(peer.counts() && peer.hears_news());
  peer.standing = Standing::kSpare;
  EXPECT_TRUE(!peer.counts() && peer.hears_news());
  peer.standing = Standing::kWaiting;
  EXPECT_FALSE(peer.counts() || peer.hears_news());
}

}  // namespace
}  // namespace gradwire::transport
