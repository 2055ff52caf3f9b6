// A job over ZeroMQ when things go wrong: nodes that never come, disagree, fall silent or die. What goes
// right is in the conformance tests, what strangers try in hostile_peers_test.cpp.
#include "transport/zmq/zmq_messenger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <mutex>
#include <thread>

#include "tests/transport/ear.h"
#include "tests/transport/zmq/zmq_jobs.h"
#include "transport/zmq/scheduler.h"
#include "transport/zmq/zmq_socket.h"

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using namespace std::chrono_literals;

// What a scheduler or a node says to people.
class Log {
 public:
  std::function<void(const std::string&)> sink() {
    return [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(text);
      changed_.notify_all();
    };
  }
  bool await(const std::string& part) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] {
      return std::ranges::any_of(lines_,
                                 [&](const auto& line) { return line.find(part) != std::string::npos; });
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

std::string fate_of(std::future<std::unique_ptr<Messenger>>& joining) {
  return error_of([&] { joining.get(); });
}

// An endpoint for a scheduler that comes later: none of those that others are given who ask for port 0.
std::string endpoint_that_stays_free() {
  constexpr int kFirst = 20'000, kLast = 32'000;  // below Linux's ports for those
  for (int port = kFirst + ::getpid() % 10'000; port < kLast; ++port) {
    ZmqOptions options = job_of(1, 1);
    options.scheduler = "tcp://127.0.0.1:" + std::to_string(port);
    if (error_of([&] { const Scheduler only_to_see(options); }) == "no error") return options.scheduler;
  }
  throw std::runtime_error("no port is free");
}

// --- rendezvous ---

TEST(ZmqRendezvous, AServerThatNeverComesIsNamedToEveryNodePresent) {
  ZmqOptions options = job_of(2, 2);
  options.rendezvous_timeout = 700ms;
  Scheduler scheduler(options);
  auto worker0 = join_later(node_of(options, scheduler, Role::kWorker, 0));
  auto worker1 = join_later(node_of(options, scheduler, Role::kWorker, {}));
  auto server0 = join_later(node_of(options, scheduler, Role::kServer, 0));
  const auto names_it =
      AllOf(HasSubstr("TimeoutError: rendezvous"), HasSubstr("still waiting for server 1 ("),
            HasSubstr("3 of 4 nodes are here"), HasSubstr("0.7 s"));
  EXPECT_THAT(error_of([&] { scheduler.wait(); }), names_it);
  for (auto* node : {&worker0, &worker1, &server0}) EXPECT_THAT(fate_of(*node), names_it);
}

TEST(ZmqRendezvous, ASchedulerThatNeverAnswersIsNamed) {
  ZmqOptions options = job_of(1, 0);
  options.scheduler = "tcp://127.0.0.1:9";  // the discard port: nobody listens
  options.rendezvous_timeout = 300ms;
  EXPECT_THAT(
      error_of([&] { connect_zmq(options); }),
      AllOf(HasSubstr("TimeoutError"), HasSubstr("no answer from the scheduler at tcp://127.0.0.1:9")));
}

TEST(ZmqRendezvous, NodesMayComeBeforeTheScheduler) {
  ZmqOptions options = job_of(1, 1);
  options.scheduler = endpoint_that_stays_free();
  ZmqOptions server = options;
  server.role = Role::kServer;
  auto early_worker = join_later(options);
  auto early_server = join_later(server);
  std::this_thread::sleep_for(300ms);
  Scheduler scheduler(options);
  auto worker = early_worker.get();
  auto other = early_server.get();
  EXPECT_EQ(worker->self(), (Node{Role::kWorker, 0}));
  worker->leave(2s);
  other->leave(2s);
  EXPECT_EQ(error_of([&] { scheduler.wait(); }), "no error");
}

TEST(ZmqRendezvous, ProgressIsTold) {
  Log log;
  ZmqOptions options = job_of(2, 1);
  options.log = log.sink();
  Scheduler scheduler(options);
  auto worker = join_later(node_of(options, scheduler, Role::kWorker, 1));
  EXPECT_TRUE(log.await("waiting for server 0 and worker 0 (1 of 3 nodes are here)"));
  scheduler.fail("enough");
  EXPECT_THAT(fate_of(worker), HasSubstr("TransportError: enough"));
}

TEST(ZmqRendezvous, ANodeThatDisagreesIsToldBothValuesAndTheJobWaitsForTheRightOne) {
  const ZmqOptions options = job_of(1, 1);
  Scheduler scheduler(options);
  ZmqOptions wrong = node_of(options, scheduler, Role::kWorker, 0);
  wrong.workers = 3;
  EXPECT_THAT(error_of([&] { connect_zmq(wrong); }),
              AllOf(HasSubstr("TransportError"), HasSubstr("workers=3"), HasSubstr("workers=1")));
  auto server = join_later(node_of(options, scheduler, Role::kServer, 0));
  const auto worker = connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
  EXPECT_EQ(worker->world().workers, 1u);
  server.get();
}

TEST(ZmqRendezvous, ADuplicateRankIsRefusedNamingWhoHasIt) {
  const ZmqOptions options = job_of(2, 0);
  Scheduler scheduler(options);
  RawWorker first(scheduler, 2, 0);
  first.await_taken();
  EXPECT_THAT(error_of([&] { connect_zmq(node_of(options, scheduler, Role::kWorker, 1)); }),
              AllOf(HasSubstr("worker 1 ("), HasSubstr("is here already, as raw-host, pid 4711")));
}

TEST(ZmqRendezvous, ANodeThatGoesAwayBeforeTheJobBeginsMakesRoom) {
  Log log;
  ZmqOptions options = job_of(2, 0);
  options.liveness_timeout = 300ms;
  options.log = log.sink();
  Scheduler scheduler(options);
  { RawWorker gone(scheduler, 2, 0); }
  EXPECT_TRUE(log.await("the job has not begun and waits for another"));
  auto worker0 = join_later(node_of(options, scheduler, Role::kWorker, 0));
  const auto worker1 = connect_zmq(node_of(options, scheduler, Role::kWorker, 1));
  worker0.get();
}

TEST(ZmqRendezvous, BadOptionsAreInvalidArguments) {
  ZmqOptions options = job_of(2, 1);
  options.scheduler = "tcp://127.0.0.1:1";
  const auto with = [&](auto change) {
    ZmqOptions changed = options;
    change(changed);
    EXPECT_THROW(connect_zmq(changed), std::invalid_argument);
  };
  with([](ZmqOptions& o) { o.role = Role::kScheduler; });
  with([](ZmqOptions& o) { o.workers = 0; });
  with([](ZmqOptions& o) { o.rank = 2; });
  with([](ZmqOptions& o) { o.streams_per_peer = 0; });
  with([](ZmqOptions& o) { o.streams_per_peer = 65; });
  with([](ZmqOptions& o) { o.scheduler = "nonsense"; });
  with([](ZmqOptions& o) { o.liveness_timeout = 0ms; });
  with([](ZmqOptions& o) { o.role = Role::kServer, o.interface = "eth77"; });
  options.scheduler = "nonsense";
  EXPECT_THROW(Scheduler{options}, std::invalid_argument);
}

TEST(ZmqRendezvous, APortInUseIsNamed) {
  ZmqOptions options = job_of(1, 0);
  const Scheduler first(options);
  options.scheduler = first.endpoint();
  EXPECT_THAT(error_of([&] { Scheduler{options}; }),
              AllOf(HasSubstr("cannot listen on " + first.endpoint()), HasSubstr("in use")));
}

// --- the end of a job, good and bad ---

TEST(ZmqScheduler, EndpointsAreWrittenAsTheyWereGiven) {
  const ZmqOptions options = job_of(2, 1);
  Scheduler scheduler(options);
  EXPECT_THAT(scheduler.endpoint(), StartsWith("tcp://127.0.0.1:"));
  RawWorker worker(scheduler, 2, 1);
  auto other = join_later(node_of(options, scheduler, Role::kWorker, 0));
  auto server = join_later(node_of(options, scheduler, Role::kServer, 0));
  EXPECT_THAT(worker.await_roster().endpoints, ElementsAre(StartsWith("tcp://127.0.0.1:")));
  scheduler.fail("over");  // the others wait for a stream of the raw worker's
}

TEST(ZmqScheduler, WaitReturnsWhenAllWorkersHaveLeft) {
  const ZmqOptions options = job_of(2, 1);
  Scheduler scheduler(options);
  auto worker0 = join_later(node_of(options, scheduler, Role::kWorker, 0));
  auto worker1 = join_later(node_of(options, scheduler, Role::kWorker, 1));
  auto server = connect_zmq(node_of(options, scheduler, Role::kServer, 0));
  auto end = std::async(std::launch::async, [&] { return error_of([&] { scheduler.wait(); }); });
  worker0.get()->leave(2s);
  EXPECT_EQ(end.wait_for(100ms), std::future_status::timeout);
  worker1.get()->leave(2s);
  server->leave(2s);
  EXPECT_EQ(end.get(), "no error");
}

TEST(ZmqScheduler, ASchedulerThatIsClosedEarlyTellsEveryNode) {
  const ZmqOptions options = job_of(2, 0);
  auto scheduler = std::make_unique<Scheduler>(options);
  auto joining = join_later(node_of(options, *scheduler, Role::kWorker, 1));
  const auto worker0 = connect_zmq(node_of(options, *scheduler, Role::kWorker, 0));
  const auto worker1 = joining.get();
  Ear ear;
  worker0->attach(ear);
  scheduler.reset();
  EXPECT_THAT(ear.failures(1), ElementsAre(HasSubstr("the scheduler was closed before the job was over")));
  worker0->detach();
}

TEST(ZmqScheduler, FailEndsWaitAndReachesEveryNode) {
  const ZmqOptions options = job_of(2, 0);
  Scheduler scheduler(options);
  auto joining = join_later(node_of(options, scheduler, Role::kWorker, 1));
  const auto worker0 = connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
  const auto worker1 = joining.get();
  Ear ear;
  worker0->attach(ear);
  scheduler.fail("the launcher lost a child");
  EXPECT_EQ(error_of([&] { scheduler.wait(); }), "TransportError: the launcher lost a child");
  EXPECT_THAT(ear.failures(1), ElementsAre("the launcher lost a child"));
  worker0->detach();
}

// --- liveness ---

TEST(ZmqLiveness, AWorkerThatFallsSilentIsNamedEverywhere) {
  ZmqOptions options = job_of(2, 0);
  options.liveness_timeout = 600ms;
  Scheduler scheduler(options);
  RawWorker raw(scheduler, 2, 0);
  const auto worker0 = connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
  Ear ear;
  worker0->attach(ear);
  raw.await_roster();
  for (int i = 0; i < 20; ++i) {
    raw.beat();
    std::this_thread::sleep_for(60ms);
  }
  EXPECT_THAT(ear.failures(0), testing::IsEmpty()) << "beats keep the job alive for longer than the timeout";
  const auto names_it = AllOf(HasSubstr("worker 1 (raw-host, pid 4711) sent no heartbeat for 0."));
  EXPECT_THAT(ear.failures(1), ElementsAre(names_it));
  EXPECT_THAT(error_of([&] { scheduler.wait(); }), names_it);
  const auto heard = raw.control().read_control();
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->header.kind, Kind::kFailure);
  EXPECT_THAT(heard->payload, names_it);
  worker0->detach();
}

TEST(ZmqLiveness, AWorkerWhoseConnectionClosesIsNamedBeforeTheTimeout) {
  ZmqOptions options = job_of(2, 0);
  options.liveness_timeout = 600s;
  Scheduler scheduler(options);
  auto raw = std::make_unique<RawWorker>(scheduler, 2, 0);
  const auto worker0 = connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
  raw->await_roster();
  raw->beat();
  raw.reset();
  EXPECT_THAT(
      error_of([&] { scheduler.wait(); }),
      HasSubstr("worker 1 (raw-host, pid 4711) closed its connection and did not come back within 1.5 s"));
}

TEST(ZmqLiveness, ASchedulerThatFallsSilentIsNamed) {
  const ZmqContext context;
  ZmqSocket fake(context, ZMQ_ROUTER, 1 << 20);
  ZmqOptions options = job_of(1, 0);
  options.liveness_timeout = 400ms;
  options.scheduler = fake.bind("tcp://127.0.0.1:*");
  auto joining = join_later(options);
  Packet hello;
  while (!fake.receive(hello)) std::this_thread::sleep_for(5ms);
  fake.send_to(hello[0].text(), pack(control_header(Kind::kRoster, {Role::kScheduler, 0}, 7),
                                     to_text(Roster{0, 7, 1, 0, {}, {}})));
  const auto worker = joining.get();
  Ear ear;
  worker->attach(ear);
  EXPECT_THAT(ear.failures(1), ElementsAre(AllOf(HasSubstr("the scheduler at " + options.scheduler),
                                                 HasSubstr("sent no heartbeat for 0."))));
  worker->detach();
}

// --- connections ---

// Sockets of this process whose unsent bytes are limited.
int bounded_sockets() {
  constexpr int kHighestFd = 4096;
  int bounded = 0;
  for (int fd = 0; fd < kHighestFd; ++fd) {
    int limit = 0;
    socklen_t length = sizeof(limit);
    if (getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, &length) == 0 && limit > 0) ++bounded;
  }
  return bounded;
}

// What the kernel has taken nothing overtakes, and by default it takes megabytes.
TEST(ZmqLinks, TheKernelIsKeptFromTakingFarMoreThanItCanSend) {
  for (const bool ipc : {false, true}) {
    ZmqOptions options = job_of(1, 1);
    options.ipc = ipc;
    Scheduler scheduler(options);
    auto joining = join_later(node_of(options, scheduler, Role::kServer, 0));
    const auto worker = connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
    const auto server = joining.get();
    EXPECT_EQ(bounded_sockets(), ipc ? 0 : 2) << "both ends of the one stream, if it is TCP";
    worker->detach();
    server->detach();
  }
}

// After leave() a node of a failed job may free what it has pushed, also what was never sent.
TEST(ZmqLinks, AfterLeaveNoSentMemoryIsRead) {
  constexpr int kFrames = 64;
  const std::vector<std::byte> values(8 << 20);
  std::atomic<int> released{0};
  const ZmqOptions options = job_of(1, 1);
  Scheduler scheduler(options);
  auto joining = join_later(node_of(options, scheduler, Role::kServer, 0));
  const auto worker = connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
  const auto server = joining.get();
  Ear ear, far_ear;
  worker->attach(ear);
  server->attach(far_ear);
  for (int i = 0; i < kFrames; ++i) {
    Frame frame;
    frame.header.kind = Kind::kPush;
    frame.payload = Buffer::borrow(values, [&released] { ++released; });
    std::vector<Frame> frames;
    frames.push_back(std::move(frame));
    worker->send({Role::kServer, 0}, std::move(frames));
  }
  far_ear.take_frames(1);  // so libzmq has the first of them
  worker->fail("a test");
  worker->leave(kPatience);
  EXPECT_EQ(released, kFrames);
  worker->detach();
  server->detach();
}

TEST(ZmqLinks, LocalSocketsLeaveNoFileBehind) {
  std::string folder = ::testing::TempDir() + "gradwire-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    ZmqOptions options = job_of(1, 1);
    options.scheduler = "ipc://" + folder + "/job";
    Scheduler scheduler(options);
    auto joining = join_later(node_of(options, scheduler, Role::kServer, 0));
    const auto worker = connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
    const auto server = joining.get();
    EXPECT_FALSE(std::filesystem::is_empty(folder));
    worker->detach();
    server->detach();
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST(ZmqRendezvous, WhoCannotReachAServerTellsTheOthersWhy) {
  const ZmqOptions options = job_of(2, 1);
  Scheduler scheduler(options);
  RawPeer server(scheduler.endpoint());
  server.handshake();
  Hello hello;
  hello.role = Role::kServer;
  hello.workers = 2;
  hello.servers = 1;
  hello.endpoint = "tcp://127.0.0.1:9";  // the discard port: nobody listens
  server.write_frame(control_header(Kind::kHello, {Role::kServer, kNoRank}, 0), to_text(hello));
  ZmqOptions impatient = node_of(options, scheduler, Role::kWorker, 0);
  impatient.rendezvous_timeout = 500ms;
  auto worker0 = join_later(impatient);
  auto worker1 = join_later(node_of(options, scheduler, Role::kWorker, 1));
  const auto says_why = AllOf(HasSubstr("rendezvous: worker 0 has no connection with server 0"),
                              HasSubstr("GRADWIRE_BIND_HOST"));
  EXPECT_THAT(fate_of(worker0), says_why);
  EXPECT_THAT(fate_of(worker1), says_why);
  EXPECT_THAT(error_of([&] { scheduler.wait(); }), says_why);
}

}  // namespace
}  // namespace gradwire::transport
