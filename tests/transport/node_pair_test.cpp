#include "transport/node_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>

#include "tests/transport/ear.h"
#include "transport/inproc/inproc.h"
#include "transport/zmq/scheduler.h"
#include "transport/zmq/zmq_messenger.h"

namespace gradwire::transport {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Node worker(std::uint32_t rank) { return {Role::kWorker, rank}; }
constexpr Node server(std::uint32_t rank) { return {Role::kServer, rank}; }

NodePair inproc_pair(InprocNetwork& network, std::uint32_t rank) {
  return colocate({network.connect(worker(rank)), network.connect(server(rank))});
}

std::vector<Frame> push_of(std::span<const std::byte> payload) {
  std::vector<Frame> frames(1);
  frames[0].header.kind = Kind::kPush;
  frames[0].payload = Buffer::borrow(payload);
  return frames;
}

TEST(NodePair, FramesBetweenTheTwoAreNeitherCopiedNorCounted) {
  InprocNetwork network(2, 2);
  const NodePair pair = inproc_pair(network, 1);
  const std::vector<std::byte> bytes(1000, std::byte{7});
  Ear ear, at_worker;
  pair.worker->send(server(1), push_of(bytes));  // before anybody listens
  pair.server->attach(ear);
  pair.worker->send(server(1), push_of(bytes));
  for (const auto& [from, frames] : ear.take_frames(2)) {
    const Frame& frame = frames.at(0);
    EXPECT_EQ(from, worker(1));
    EXPECT_EQ(frame.header.sender, worker(1));
    EXPECT_EQ(frame.header.epoch, pair.worker->world().epoch);
    EXPECT_EQ(frame.payload.bytes().data(), bytes.data());
  }
  pair.worker->attach(at_worker);
  pair.server->send(worker(1), push_of(bytes));
  EXPECT_EQ(at_worker.take_frames(1)[0].from, server(1));
  EXPECT_TRUE(pair.worker->counters().empty());
  EXPECT_TRUE(pair.server->counters().empty());
  pair.server->detach();
  pair.worker->detach();
  pair.worker->send(server(1), push_of(bytes));  // to nobody
}

TEST(NodePair, OtherPeersAreReachedAsBefore) {
  InprocNetwork network(2, 2);
  const NodePair a = inproc_pair(network, 0), b = inproc_pair(network, 1);
  EXPECT_EQ(a.worker->local_peer(), server(0));
  EXPECT_EQ(a.server->local_peer(), worker(0));
  Ear ear;
  b.server->attach(ear);
  const std::vector<std::byte> bytes(1000, std::byte{7});
  a.worker->send(server(1), push_of(bytes));
  const auto heard = ear.take_frames(1);
  EXPECT_NE(heard[0].frames[0].payload.bytes().data(), bytes.data());
  EXPECT_EQ(a.worker->counters().at(0).counters.bytes_sent, kHeaderBytes + bytes.size());
  b.server->detach();
}

TEST(NodePair, TakesOnlyAWorkerAndItsServer) {
  InprocNetwork network(2, 2);
  try {
    colocate({network.connect(worker(0)), network.connect(server(1))});
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("given worker 0 and server 1"));
  }
}

ZmqOptions job_of_pairs(std::uint32_t workers) {
  ZmqOptions options;
  options.scheduler = "tcp://127.0.0.1:*";
  options.workers = workers;
  options.rendezvous_timeout = 20s;
  return options;
}

/// All pairs of a job, by order of arrival.
std::vector<NodePair> connect_pairs(ZmqOptions options, const Scheduler& scheduler) {
  options.scheduler = scheduler.endpoint();
  std::vector<std::future<NodePair>> joining;
  for (std::uint32_t i = 0; i < options.workers; ++i)
    joining.push_back(std::async(std::launch::async, [options] { return connect_zmq_pair(options); }));
  std::vector<NodePair> pairs;
  for (auto& future : joining) pairs.push_back(future.get());
  return pairs;
}

// Ranks by order of arrival, and a scheduler that was told of no servers.
TEST(ZmqNodePair, ServersTakeTheRankOfTheirWorker) {
  static constexpr std::uint32_t kWorkers = 3;
  const ZmqOptions options = job_of_pairs(kWorkers);
  Scheduler scheduler(options);
  const std::vector<NodePair> pairs = connect_pairs(options, scheduler);
  std::vector<Ear> ears(kWorkers);
  const std::vector<std::byte> bytes(100'000, std::byte{7});
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    EXPECT_EQ(pairs[i].worker->self().rank, pairs[i].server->self().rank);
    EXPECT_EQ(pairs[i].worker->world().servers, kWorkers);
    pairs[i].server->attach(ears[i]);
  }
  for (const NodePair& pair : pairs) {
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) pair.worker->send(server(rank), push_of(bytes));
  }
  for (Ear& ear : ears) EXPECT_EQ(ear.take_frames(kWorkers).size(), kWorkers);
  for (const NodePair& pair : pairs) pair.worker->leave(2s);
  for (const NodePair& pair : pairs) pair.server->leave(2s);
  EXPECT_TRUE(scheduler.wait_for(5s));
}

TEST(ZmqNodePair, AServerWhoseWorkerHasFailedDoesNotLookLikeOneThatLeaves) {
  const ZmqOptions options = job_of_pairs(2);
  Scheduler scheduler(options);
  const std::vector<NodePair> pairs = connect_pairs(options, scheduler);
  const NodePair& failing = pairs.front();
  const std::vector<std::byte> bytes(8);
  failing.worker->fail("no memory is left");
  const Node other = worker(1 - failing.worker->self().rank);
  EXPECT_THAT(error_of([&] { failing.server->send(other, push_of(bytes)); }), HasSubstr("no memory is left"));
}

TEST(ZmqNodePair, DoesNotMixWithDedicatedServers) {
  ZmqOptions options;
  options.scheduler = "tcp://127.0.0.1:*";
  options.workers = 1;
  options.servers = 1;
  options.rendezvous_timeout = 5s;
  Scheduler scheduler(options);
  options.scheduler = scheduler.endpoint();
  options.role = Role::kServer;
  auto dedicated = std::async(std::launch::async, [options] { return connect_zmq(options); });
  std::this_thread::sleep_for(300ms);
  try {
    connect_zmq_pair(options);
    FAIL();
  } catch (const TransportError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the job was started with 1 servers; start it without them (-s 0)"));
  }
  scheduler.fail("over");
  EXPECT_THROW(dedicated.get(), TransportError);
}

TEST(ZmqNodePair, LeavesOptionalServersWaiting) {
  ZmqOptions options;
  options.scheduler = "tcp://127.0.0.1:*";
  options.workers = 1;
  options.servers = 1;
  options.servers_optional = true;
  options.rendezvous_timeout = 20s;
  options.liveness_timeout = 400ms;
  Scheduler scheduler(options);
  options.scheduler = scheduler.endpoint();
  ZmqOptions of_dedicated = options;
  of_dedicated.role = Role::kServer;
  of_dedicated.rendezvous_timeout = 3s;
  auto dedicated = std::async(std::launch::async, [of_dedicated] { return connect_zmq(of_dedicated); });
  std::this_thread::sleep_for(300ms);
  const NodePair pair = connect_zmq_pair(options);
  std::this_thread::sleep_for(1s);  // longer than silence is allowed to last
  EXPECT_EQ(dedicated.wait_for(0s), std::future_status::timeout);
  pair.worker->leave(2s);
  pair.server->leave(2s);
  EXPECT_TRUE(scheduler.wait_for(5s));
  EXPECT_THROW(dedicated.get(), TimeoutError);
}

}  // namespace
}  // namespace gradwire::transport
