// Encrypted jobs and those who are not of them: the right key, a wrong one, none, and what an outsider sees.
#include "transport/zmq/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <thread>

#include "tests/transport/ear.h"
#include "tests/transport/zmq/zmq_jobs.h"
#include "transport/zmq/zmq_host.h"

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

/// All that a job says to people.
class Lines {
 public:
  std::function<void(const std::string&)> sink() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      text_ += line + "\n";
    };
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  bool await(const std::string& part, std::chrono::milliseconds patience = kPatience) const {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (text().find(part) == std::string::npos) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(5ms);
    }
    return true;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

ZmqOptions job_with(const std::optional<JobKey>& key) {
  ZmqOptions options = job_of(1, 1);
  options.key = key;
  options.ipc = false;
  return options;
}

/// What a worker hears that comes to a job with a key, or none, of its own.
std::string fate_of_worker(const std::optional<JobKey>& jobs, const std::optional<JobKey>& own) {
  Scheduler scheduler(job_with(jobs));
  ZmqOptions worker = node_of(job_with(own), scheduler, Role::kWorker, 0);
  return error_of([&] { connect_zmq(worker); });
}

Frame frame_of(std::size_t bytes) {
  Frame frame;
  frame.header.kind = Kind::kPush;
  frame.payload = Buffer::allocate(bytes);
  std::ranges::fill(frame.payload.bytes(), std::byte{0x5A});
  return frame;
}

// --- handshakes ---

TEST(Curve, AWrongKeyIsTold) {
  EXPECT_THAT(fate_of_worker(JobKey::make(), JobKey::make()),
              AllOf(HasSubstr("TransportError: rendezvous: the scheduler at tcp://127.0.0.1:"),
                    HasSubstr("has ended every handshake for"), HasSubstr("this node has a job key")));
}

TEST(Curve, ANodeWithoutAKeyIsTold) {
  EXPECT_THAT(fate_of_worker(JobKey::make(), {}),
              AllOf(HasSubstr("TransportError: rendezvous: the scheduler at tcp://127.0.0.1:"),
                    HasSubstr("this node has no job key")));
}

TEST(Curve, AJobWithoutAKeyIsTold) {
  EXPECT_THAT(fate_of_worker({}, JobKey::make()),
              AllOf(HasSubstr("TransportError: rendezvous: the scheduler at tcp://127.0.0.1:"),
                    HasSubstr("this node has a job key")));
}

TEST(Curve, TheSchedulerTellsOfStrangersAndTheJobGoesOn) {
  Lines lines;
  ZmqOptions options = job_with(JobKey::make());
  options.log = lines.sink();
  Scheduler scheduler(options);
  ZmqOptions stranger = node_of(job_with({}), scheduler, Role::kWorker, 0);
  const std::string told = "refused a message from a stranger: handshake at " + scheduler.endpoint() +
                           ": one side encrypts and the other does not";
  for (int attempt = 0; attempt < 20 && !lines.await(told, 200ms); ++attempt)  // who reads first ends it
    EXPECT_THAT(error_of([&] { connect_zmq(stranger); }), HasSubstr("TransportError"));
  EXPECT_TRUE(lines.await(told, 200ms)) << lines.text();
  auto server = join_later(node_of(options, scheduler, Role::kServer, 0));
  auto worker = connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
  worker->leave(2s);
  server.get()->leave(2s);
}

TEST(Curve, NodePairsAndWorkersOfOneHostMeetWithTheirKey) {
  ZmqOptions options = job_of(2, 0);
  options.key = JobKey::make();
  Scheduler scheduler(options);
  options.scheduler = scheduler.endpoint();
  auto meet = [&](std::uint32_t rank) {
    ZmqOptions own = options;
    own.rank = rank;
    NodePair pair = connect_zmq_pair(own);
    HostLink link = connect_zmq_host(*pair.worker, own);
    EXPECT_EQ(link.hosts, (Hosts{{0, 1}}));
    link.worker->leave(2s);
    if (link.server) link.server->leave(2s);
    pair.worker->leave(2s);
    pair.server->leave(2s);
  };
  auto other = std::async(std::launch::async, meet, 1);
  meet(0);
  other.get();
}

TEST(Curve, APayloadOfTheLargestSizePasses) {
  ZmqOptions options = job_with(JobKey::make());
  options.max_frame_bytes = 1 << 16;
  Scheduler scheduler(options);
  auto joining = join_later(node_of(options, scheduler, Role::kServer, 0));
  const auto worker = connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
  const auto server = joining.get();
  Ear ear;
  server->attach(ear);
  std::vector<Frame> frames;
  frames.push_back(frame_of(options.max_frame_bytes));
  worker->send({Role::kServer, 0}, std::move(frames));
  const auto heard = ear.take_frames(1);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].frames[0].payload.size_bytes(), options.max_frame_bytes);
  worker->leave(2s);
  server->leave(2s);
  server->detach();
}

// --- outsiders ---

/// A job with a key, and its server's endpoint, which only members know.
class CurveJob : public ::testing::Test {
 protected:
  CurveJob() : options_(job_with(key_)) {
    options_.log = lines_.sink();
    scheduler_.emplace(options_);
    auto joining = join_later(member(Role::kServer));
    worker_ = connect_zmq(member(Role::kWorker));
    server_ = joining.get();
  }
  ~CurveJob() override {
    worker_->leave(2s);
    server_->leave(2s);
    EXPECT_EQ(error_of([&] { scheduler_->wait(); }), "no error");
  }
  ZmqOptions member(Role role) {
    ZmqOptions own = node_of(options_, *scheduler_, role, 0);
    own.log = lines_.sink();
    return own;
  }

  const JobKey key_ = JobKey::make();
  Lines lines_;
  ZmqOptions options_;
  std::optional<Scheduler> scheduler_;
  std::unique_ptr<Messenger> worker_, server_;
};

TEST_F(CurveJob, WhoDoesNotEncryptHearsAGreetingAndNoMore) {
  RawPeer peer(scheduler_->endpoint());
  peer.write(zmtp_greeting() + zmtp_ready());
  peer.write_frame(control_header(Kind::kHello, {Role::kWorker, kNoRank}, 0), raw_hello(1, 1));
  const std::string heard = peer.read_to_the_end();
  EXPECT_LE(heard.size(), 64u);
}

/// Speaks CURVE with keys of its own choice, and says hello. Returns what the connection came to.
ConnectionEvent::Kind fate_of_outsider(const std::string& endpoint, const CurveKey& listeners,
                                       const CurveKeyPair& own, bool& was_answered) {
  const auto text_of = [](const CurveKey& key) {
    return std::string(reinterpret_cast<const char*>(key.data()), key.size());
  };
  const ZmqContext context;
  ZmqSocket socket(context, ZMQ_DEALER, 1 << 20);
  ConnectionWatch watch(context, socket);
  socket.set(ZMQ_CURVE_SERVERKEY, text_of(listeners));
  socket.set(ZMQ_CURVE_PUBLICKEY, text_of(own.public_key));
  socket.set(ZMQ_CURVE_SECRETKEY, text_of(own.secret_key));
  socket.connect(endpoint);
  socket.send(pack(control_header(Kind::kHello, {Role::kWorker, kNoRank}, 0), raw_hello(1, 1)));
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::optional<ConnectionEvent> event;
  while (!event && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(2ms);
    event = watch.next();
  }
  Packet answer;
  was_answered = socket.receive(answer);
  return event ? event->kind : ConnectionEvent::Kind::kDisconnected;
}

TEST_F(CurveJob, WhoHasNoKeyOfTheJobIsShutOutBeforeItIsHeard) {
  bool was_answered = true;
  EXPECT_EQ(fate_of_outsider(scheduler_->endpoint(), JobKey::make().of_listeners().public_key,
                             key_.of_connectors(), was_answered),
            ConnectionEvent::Kind::kClosedEarly);
  EXPECT_FALSE(was_answered);
  EXPECT_TRUE(lines_.await("it has not this job's key")) << lines_.text();
}

TEST_F(CurveJob, WhoKnowsTheListenersPublicKeyAloneIsNoMember) {
  bool was_answered = true;
  EXPECT_EQ(fate_of_outsider(scheduler_->endpoint(), key_.of_listeners().public_key,
                             JobKey::make().of_connectors(), was_answered),
            ConnectionEvent::Kind::kNotAMember);
  EXPECT_FALSE(was_answered);
}

TEST_F(CurveJob, AMemberIsTakenByTheSameMeans) {
  bool was_answered = false;
  EXPECT_EQ(fate_of_outsider(scheduler_->endpoint(), key_.of_listeners().public_key, key_.of_connectors(),
                             was_answered),
            ConnectionEvent::Kind::kOpened);
}

TEST_F(CurveJob, NobodyIsToldTheKey) {
  fate_of_worker(key_, {});
  fate_of_worker({}, key_);
  const std::string text = key_.text();
  for (std::size_t i = 0; i + 8 <= text.size(); i += 8)
    EXPECT_THAT(lines_.text(), Not(HasSubstr(text.substr(i, 8))));
  EXPECT_THAT(lines_.text(), HasSubstr("all 2 nodes are here"));
}

TEST(ZapAuthenticator, WhereItHasGoneNobodyIsLetIn) {
  const ZmqContext context;
  const JobKey key = JobKey::make();
  ZmqSocket router(context, ZMQ_ROUTER, 1 << 20);
  ZapAuthenticator(context, key).guard(router);
  bool was_answered = true;
  EXPECT_NE(fate_of_outsider(router.bind("tcp://127.0.0.1:*"), key.of_listeners().public_key,
                             key.of_connectors(), was_answered),
            ConnectionEvent::Kind::kOpened);
  Packet heard;
  EXPECT_FALSE(router.receive(heard));
}

TEST(ZapAuthenticator, WhatWasBoundBeforeStaysOpen) {
  const ZmqContext context;
  const ZapAuthenticator authenticator(context, JobKey::make());
  ZmqSocket router(context, ZMQ_ROUTER, 1 << 20);
  const std::string before = router.bind("tcp://127.0.0.1:*");
  authenticator.guard(router);
  const std::string guarded = router.bind("tcp://127.0.0.1:*");
  RawPeer in(before), out(guarded);
  in.handshake();
  out.write(zmtp_greeting() + zmtp_ready());
  EXPECT_LE(out.read_to_the_end().size(), 64u);
}

}  // namespace
}  // namespace gradwire::transport
