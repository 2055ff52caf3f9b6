// A job over ZeroMQ when things go wrong: nodes that never come, disagree, fall silent or die; hostile
// strangers. What goes right is transport_conformance_test.cpp.
#include "transport/zmq_messenger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <random>
#include <thread>

#include "raw_peer.h"
#include "transport/control.h"
#include "transport/zmq_socket.h"

namespace gradwire::transport {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr auto kPatience = 20s;

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

class FailureEar : public Sink {
 public:
  void on_frames(Node, std::vector<Frame>) override {}
  void on_goodbye(Node) override {}
  void on_failure(const std::string& text) override { text_.set_value(text); }  // a second call would throw
  std::string await() {
    auto future = text_.get_future();
    return future.wait_for(kPatience) == std::future_status::ready ? future.get() : "heard nothing";
  }

 private:
  std::promise<std::string> text_;
};

ZmqOptions job_of(std::uint32_t workers, std::uint32_t servers) {
  ZmqOptions options;
  options.scheduler = "tcp://127.0.0.1:*";
  options.workers = workers;
  options.servers = servers;
  options.rendezvous_timeout = 15s;
  return options;
}

ZmqOptions node_of(ZmqOptions options, const Scheduler& scheduler, Role role,
                   std::optional<std::uint32_t> rank) {
  options.scheduler = scheduler.endpoint();
  options.role = role;
  options.rank = rank;
  options.log = nullptr;
  return options;
}

std::future<std::unique_ptr<Messenger>> join_later(const ZmqOptions& options) {
  return std::async(std::launch::async, [options] { return connect_zmq(options); });
}

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const TimeoutError& error) {
    return std::string("TimeoutError: ") + error.what();
  } catch (const TransportError& error) {
    return std::string("TransportError: ") + error.what();
  }
  return "no error";
}

std::string fate_of(std::future<std::unique_ptr<Messenger>>& joining) {
  return error_of([&] { joining.get(); });
}

// --- a worker made of a plain socket ---

constexpr Node kRawNode{Role::kWorker, 1};

FrameHeader control_header(Kind kind, Node sender, std::uint64_t epoch) {
  FrameHeader header;
  header.kind = kind;
  header.sender = sender;
  header.epoch = epoch;
  return header;
}

std::string raw_hello(std::uint32_t workers, std::uint32_t servers) {
  return to_text(
      Hello{Role::kWorker, kRawNode.rank, workers, servers, {}, {}, {}, kVersion, "raw-host", 4711});
}

// Worker 1 of a job, by hand: it stops beating when told to.
class RawWorker {
 public:
  RawWorker(const Scheduler& scheduler, std::uint32_t workers, std::uint32_t servers)
      : control_(scheduler.endpoint()) {
    control_.handshake();
    control_.write_frame(control_header(Kind::kHello, {Role::kWorker, kNoRank}, 0),
                         raw_hello(workers, servers));
  }

  Roster await_roster() {
    const auto answer = control_.read_control();
    if (!answer || answer->header.kind != Kind::kRoster) throw std::runtime_error("no roster");
    roster_ = parse_roster(answer->payload);
    return roster_;
  }
  /// Waits for a first heartbeat: the scheduler has taken the hello.
  void await_taken() {
    if (!control_.read_message()) throw std::runtime_error("the scheduler did not take the hello");
  }
  void beat() { control_.write_frame(control_header(Kind::kHeartbeat, kRawNode, roster_.epoch), ""); }

  RawPeer open_stream(std::uint32_t server) {
    RawPeer stream(roster_.endpoints.at(server));
    stream.handshake();
    stream.write_frame(control_header(Kind::kHello, kRawNode, roster_.epoch), to_text(StreamHello{0, 1}));
    const auto answer = stream.read_control();
    if (!answer || answer->header.kind != Kind::kHello)
      throw std::runtime_error("no answer to the stream's hello");
    return stream;
  }

  RawPeer& control() { return control_; }

 private:
  RawPeer control_;
  Roster roster_;
};

// --- roll call ---

TEST(ZmqRollCall, AServerThatNeverComesIsNamedToEveryNodePresent) {
  ZmqOptions options = job_of(2, 2);
  options.rendezvous_timeout = 700ms;
  Scheduler scheduler(options);
  auto worker0 = join_later(node_of(options, scheduler, Role::kWorker, 0));
  auto worker1 = join_later(node_of(options, scheduler, Role::kWorker, {}));
  auto server0 = join_later(node_of(options, scheduler, Role::kServer, 0));
  const auto names_it = AllOf(HasSubstr("TimeoutError: roll call"), HasSubstr("still waiting for server 1 ("),
                              HasSubstr("3 of 4 nodes are here"), HasSubstr("0.7 s"));
  EXPECT_THAT(error_of([&] { scheduler.wait(); }), names_it);
  for (auto* node : {&worker0, &worker1, &server0}) EXPECT_THAT(fate_of(*node), names_it);
}

TEST(ZmqRollCall, ASchedulerThatNeverAnswersIsNamed) {
  ZmqOptions options = job_of(1, 0);
  options.scheduler = "tcp://127.0.0.1:9";  // the discard port: nobody listens
  options.rendezvous_timeout = 300ms;
  EXPECT_THAT(
      error_of([&] { connect_zmq(options); }),
      AllOf(HasSubstr("TimeoutError"), HasSubstr("no answer from the scheduler at tcp://127.0.0.1:9")));
}

TEST(ZmqRollCall, NodesMayComeBeforeTheScheduler) {
  ZmqOptions options = job_of(1, 1);
  std::string endpoint;
  {
    const Scheduler only_for_its_port(options);
    endpoint = only_for_its_port.endpoint();
  }
  options.scheduler = endpoint;
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

TEST(ZmqRollCall, ProgressIsTold) {
  Log log;
  ZmqOptions options = job_of(2, 1);
  options.log = log.sink();
  Scheduler scheduler(options);
  auto worker = join_later(node_of(options, scheduler, Role::kWorker, 1));
  EXPECT_TRUE(log.await("waiting for server 0 and worker 0 (1 of 3 nodes are here)"));
  scheduler.fail("enough");
  EXPECT_THAT(fate_of(worker), HasSubstr("TransportError: enough"));
}

TEST(ZmqRollCall, ANodeThatDisagreesIsToldBothValuesAndTheJobWaitsForTheRightOne) {
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

TEST(ZmqRollCall, ADuplicateRankIsRefusedNamingWhoHasIt) {
  const ZmqOptions options = job_of(2, 0);
  Scheduler scheduler(options);
  RawWorker first(scheduler, 2, 0);
  first.await_taken();
  EXPECT_THAT(error_of([&] { connect_zmq(node_of(options, scheduler, Role::kWorker, 1)); }),
              AllOf(HasSubstr("worker 1 ("), HasSubstr("is here already, as raw-host, pid 4711")));
}

TEST(ZmqRollCall, ANodeThatGoesAwayBeforeTheJobBeginsMakesRoom) {
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

TEST(ZmqRollCall, BadOptionsAreInvalidArguments) {
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

TEST(ZmqRollCall, APortInUseIsNamed) {
  ZmqOptions options = job_of(1, 0);
  const Scheduler first(options);
  options.scheduler = first.endpoint();
  EXPECT_THAT(error_of([&] { Scheduler{options}; }),
              AllOf(HasSubstr("cannot listen on " + first.endpoint()), HasSubstr("in use")));
}

// --- the end of a job, good and bad ---

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
  FailureEar ear;
  worker0->attach(ear);
  scheduler.reset();
  EXPECT_THAT(ear.await(), HasSubstr("the scheduler was closed before the job was over"));
  worker0->detach();
}

TEST(ZmqScheduler, FailEndsWaitAndReachesEveryNode) {
  const ZmqOptions options = job_of(2, 0);
  Scheduler scheduler(options);
  auto joining = join_later(node_of(options, scheduler, Role::kWorker, 1));
  const auto worker0 = connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
  const auto worker1 = joining.get();
  FailureEar ear;
  worker0->attach(ear);
  scheduler.fail("the launcher lost a child");
  EXPECT_EQ(error_of([&] { scheduler.wait(); }), "TransportError: the launcher lost a child");
  EXPECT_EQ(ear.await(), "the launcher lost a child");
  worker0->detach();
}

// --- liveness ---

TEST(ZmqLiveness, AWorkerThatFallsSilentIsNamedEverywhere) {
  ZmqOptions options = job_of(2, 0);
  options.liveness_timeout = 600ms;
  Scheduler scheduler(options);
  RawWorker raw(scheduler, 2, 0);
  const auto worker0 = connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
  FailureEar ear;
  worker0->attach(ear);
  raw.await_roster();
  for (int i = 0; i < 20; ++i) {
    raw.beat();
    std::this_thread::sleep_for(60ms);
  }
  EXPECT_THAT(error_of([&] { worker0->exchange("still here", "", 10ms); }), HasSubstr("TimeoutError"))
      << "beats keep the job alive for longer than the timeout";
  const auto names_it = AllOf(HasSubstr("worker 1 (raw-host, pid 4711) sent no heartbeat for 0."));
  EXPECT_THAT(ear.await(), names_it);
  EXPECT_THAT(error_of([&] { scheduler.wait(); }), names_it);
  const auto heard = raw.control().read_control();
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->header.kind, Kind::kFailure);
  EXPECT_THAT(heard->payload, names_it);
  worker0->detach();
}

TEST(ZmqLiveness, AWorkerWhoseConnectionClosesIsNamedBeforeTheTimeout) {
  ZmqOptions options = job_of(2, 0);
  options.liveness_timeout = 5s;
  Scheduler scheduler(options);
  auto raw = std::make_unique<RawWorker>(scheduler, 2, 0);
  const auto worker0 = connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
  raw->await_roster();
  raw->beat();
  const auto died = std::chrono::steady_clock::now();
  raw.reset();
  EXPECT_THAT(
      error_of([&] { scheduler.wait(); }),
      HasSubstr("worker 1 (raw-host, pid 4711) closed its connection and did not come back within 1.5 s"));
  EXPECT_LT(std::chrono::steady_clock::now() - died, 4s);
}

TEST(ZmqLiveness, ASchedulerThatFallsSilentIsNamed) {
  const ZmqContext context;
  ZmqSocket fake(context, ZMQ_ROUTER, 1 << 20);
  ZmqOptions options = job_of(1, 0);
  options.liveness_timeout = 400ms;
  options.scheduler = fake.bind("tcp://127.0.0.1:*");
  auto joining = join_later(options);
  Parcel hello;
  while (!fake.receive(hello)) std::this_thread::sleep_for(5ms);
  fake.send_to(hello[0].text(), pack(control_header(Kind::kRoster, {Role::kScheduler, 0}, 7),
                                     to_text(Roster{0, 7, 1, 0, {}, {}})));
  const auto worker = joining.get();
  FailureEar ear;
  worker->attach(ear);
  EXPECT_THAT(ear.await(), AllOf(HasSubstr("the scheduler at " + options.scheduler),
                                 HasSubstr("sent no heartbeat for 0.")));
  worker->detach();
}

// --- hostile strangers ---

Buffer to_buffer(const std::string& text) {
  Buffer buffer = Buffer::allocate(text.size());
  std::memcpy(buffer.bytes().data(), text.data(), text.size());
  return buffer;
}

// Answers every push with a reply of the same payload, and refuses what arrived damaged, as a Sink must.
class Echo : public Sink {
 public:
  explicit Echo(Messenger& server) : server_(server) {}
  void on_frames(Node from, std::vector<Frame> frames) override {
    for (Frame& frame : frames) answer(frame);
    try {
      server_.send(from, std::move(frames));
    } catch (const TransportError&) {  // the server has left: the test is over
    }
  }
  void on_failure(const std::string& text) override { ADD_FAILURE() << text; }
  void on_goodbye(Node) override {}

 private:
  static void answer(Frame& frame) {
    frame.header.kind = Kind::kReply;
    try {
      require_intact(frame.payload);
    } catch (const FrameError& error) {
      frame.header.kind = Kind::kError;
      frame.payload = to_buffer(error.what());
    }
  }

  Messenger& server_;
};

// Pushes numbered frames, a few at a time, and checks every reply.
class Pusher : public Sink {
 public:
  explicit Pusher(Messenger& worker) : worker_(worker) {
    for (int i = 0; i < 8; ++i) push();
    worker_.attach(*this);  // from here on the I/O thread pushes
  }
  ~Pusher() override { worker_.detach(); }
  void on_frames(Node, std::vector<Frame> frames) override {
    for (const Frame& frame : frames) {
      const std::uint64_t expected = replies_;
      EXPECT_EQ(frame.header.step, expected);
      EXPECT_EQ(frame.payload.size_bytes(), size_of(expected));
      for (const std::byte byte : frame.payload.bytes()) ASSERT_EQ(byte, static_cast<std::byte>(expected));
      ++replies_;
      push();
    }
  }
  void on_failure(const std::string& text) override { ADD_FAILURE() << text; }
  void on_goodbye(Node) override {}

  /// Whether replies go on coming.
  bool makes_progress() {
    const std::uint64_t before = replies_;
    for (int i = 0; i < 2000; ++i) {
      if (replies_ > before + 50) return true;
      std::this_thread::sleep_for(2ms);
    }
    return false;
  }

 private:
  static std::size_t size_of(std::uint64_t step) { return step * 997 % 20'000; }
  void push() {
    Frame frame;
    frame.header.kind = Kind::kPush;
    frame.header.step = pushes_;
    frame.payload = Buffer::allocate(size_of(pushes_));
    std::ranges::fill(frame.payload.bytes(), static_cast<std::byte>(pushes_));
    ++pushes_;
    std::vector<Frame> frames;
    frames.push_back(std::move(frame));
    worker_.send({Role::kServer, 0}, std::move(frames));
  }

  Messenger& worker_;
  std::uint64_t pushes_ = 0;
  std::atomic<std::uint64_t> replies_{0};
};

// A live job of worker 0, the raw worker 1 and server 0, with traffic between worker 0 and the server.
class Hostile : public ::testing::Test {
 protected:
  Hostile() : options_(hostile_options()), scheduler_(options_), raw_(scheduler_, 2, 1) {
    auto joining = join_later(node_of(options_, scheduler_, Role::kWorker, 0));
    auto serving = join_later(node_of(options_, scheduler_, Role::kServer, 0));
    roster_ = raw_.await_roster();
    stream_.emplace(raw_.open_stream(0));
    beating_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        raw_.beat();
        std::this_thread::sleep_for(100ms);
      }
    });
    worker_ = joining.get();
    server_ = serving.get();
    echo_.emplace(*server_);
    server_->attach(*echo_);
    pusher_.emplace(*worker_);
  }
  ~Hostile() override {
    EXPECT_TRUE(pusher_->makes_progress()) << "the job was disturbed";
    pusher_.reset();
    const FrameHeader goodbye = control_header(Kind::kGoodbye, kRawNode, roster_.epoch);
    stream_->write_frame(goodbye, "");
    raw_.control().write_frame(goodbye, "");
    worker_->leave(2s);
    server_->leave(2s);
    server_->detach();
    EXPECT_EQ(error_of([&] { scheduler_.wait(); }), "no error");
  }

  static ZmqOptions hostile_options() {
    ZmqOptions options = job_of(2, 1);
    options.max_frame_bytes = 1 << 20;
    return options;
  }
  std::vector<std::string> both_endpoints() const { return {scheduler_.endpoint(), roster_.endpoints[0]}; }

  static std::string expect_reject(RawPeer& peer) {
    const auto answer = peer.read_control();
    if (!answer || answer->header.kind != Kind::kReject) return "no reject";
    return answer->payload;
  }

  ZmqOptions options_;
  Scheduler scheduler_;
  RawWorker raw_;
  Roster roster_;
  std::optional<RawPeer> stream_;  // of worker 1 to server 0, open
  std::unique_ptr<Messenger> worker_;
  std::unique_ptr<Messenger> server_;
  std::optional<Echo> echo_;
  std::optional<Pusher> pusher_;
  std::jthread beating_;  // last: stops before what it uses goes
};

TEST_F(Hostile, GarbageAndTruncatedHandshakesAreNothing) {
  std::mt19937 random(1);
  for (const std::string& endpoint : both_endpoints()) {
    for (int i = 0; i < 40; ++i) {
      std::string garbage(1 + random() % 3000, '\0');
      for (char& byte : garbage) byte = static_cast<char>(random());
      RawPeer(endpoint).write(garbage);
      RawPeer(endpoint).write(zmtp_greeting().substr(0, random() % 64));
      RawPeer(endpoint).write(zmtp_greeting() + zmtp_ready().substr(0, random() % zmtp_ready().size()));
      RawPeer(endpoint).write(zmtp_greeting() + garbage);
    }
  }
  EXPECT_TRUE(pusher_->makes_progress());
}

TEST_F(Hostile, OversizedLengthsCloseTheConnection) {
  using namespace std::string_literals;
  for (const std::string& endpoint : both_endpoints()) {
    for (const std::string& length : {"\x02\0\0\x01\0\0\0\0\0"s, "\x02\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF"s,
                                      "\x02\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"s, "\x02\0\0\0\0\0\x20\0\0"s}) {
      RawPeer peer(endpoint);
      peer.handshake();
      peer.write(length);
      EXPECT_TRUE(peer.is_closed_by_peer());
    }
  }
}

TEST_F(Hostile, RandomMessagesAreRefusedWithAReason) {
  std::mt19937 random(2);
  for (const std::string& endpoint : both_endpoints()) {
    RawPeer peer(endpoint);
    peer.handshake();
    for (int i = 0; i < 60; ++i) {
      std::vector<std::string> parts(1 + random() % 5);
      for (std::string& part : parts) {
        part.resize(random() % 300);
        for (char& byte : part) byte = static_cast<char>(random());
      }
      peer.write_message(parts);
      EXPECT_THAT(expect_reject(peer),
                  AnyOf(HasSubstr("parts, expected header and payload"), HasSubstr("frame: header length is"),
                        HasSubstr("frame: magic is")));
    }
  }
}

TEST_F(Hostile, AStrangersFramesAreRefused) {
  for (const std::string& endpoint : both_endpoints()) {
    RawPeer peer(endpoint);
    peer.handshake();
    for (const Kind kind : {Kind::kPush, Kind::kFailure, Kind::kExchange, Kind::kRoster}) {
      peer.write_frame(control_header(kind, {Role::kWorker, 0}, roster_.epoch), "text");
      EXPECT_THAT(expect_reject(peer), HasSubstr("the first frame of a connection must be a hello"));
    }
  }
}

TEST_F(Hostile, AHelloOfAnotherEpochOrRankIsRefused) {
  RawPeer peer(roster_.endpoints[0]);
  peer.handshake();
  const std::string stream = to_text(StreamHello{0, 1});
  peer.write_frame(control_header(Kind::kHello, {Role::kWorker, 0}, roster_.epoch + 1), stream);
  EXPECT_THAT(expect_reject(peer),
              AllOf(HasSubstr("hello: from worker 0 in epoch"), HasSubstr("expected a worker of this job")));
  peer.write_frame(control_header(Kind::kHello, {Role::kWorker, 5}, roster_.epoch), stream);
  EXPECT_THAT(expect_reject(peer), HasSubstr("hello: from worker 5"));
  peer.write_frame(control_header(Kind::kHello, {Role::kServer, 0}, roster_.epoch), stream);
  EXPECT_THAT(expect_reject(peer), HasSubstr("hello: from server 0"));
  peer.write_frame(control_header(Kind::kHello, {Role::kWorker, 0}, roster_.epoch), stream);
  EXPECT_THAT(expect_reject(peer), HasSubstr("stream 0 of worker 0 or this connection is in use"));
  peer.write_frame(control_header(Kind::kHello, {Role::kWorker, 0}, roster_.epoch), "stream=x\nstreams=1\n");
  EXPECT_THAT(expect_reject(peer), HasSubstr("stream is 'x', expected a whole number"));
}

TEST_F(Hostile, AMembersSpoofedAndBrokenFramesAreRefusedAndItsGoodOnesGoOn) {
  stream_->write_frame(control_header(Kind::kPush, {Role::kWorker, 0}, roster_.epoch), "spoofed");
  EXPECT_THAT(expect_reject(*stream_),
              AllOf(HasSubstr("sender is worker 0"), HasSubstr("expected worker 1")));
  stream_->write_frame(control_header(Kind::kPush, kRawNode, roster_.epoch + 1), "another job");
  EXPECT_THAT(expect_reject(*stream_),
              HasSubstr("expected worker 1 in epoch " + std::to_string(roster_.epoch)));
  stream_->write_frame(control_header(Kind::kExchange, kRawNode, roster_.epoch), "wrong place");
  EXPECT_THAT(expect_reject(*stream_), HasSubstr("has no place on a data connection"));

  const std::string payload = "four";
  const auto header =
      encode_header(control_header(Kind::kPush, kRawNode, roster_.epoch), std::as_bytes(std::span(payload)));
  const std::string good(reinterpret_cast<const char*>(header.data()), header.size());
  stream_->write_message({good, "fouR"});  // not the transport's to refuse: it did not read it
  const auto refusal = stream_->read_control();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->header.kind, Kind::kError);
  EXPECT_THAT(refusal->payload, HasSubstr("payload checksum"));
  stream_->write_message({good, payload, good});
  EXPECT_THAT(expect_reject(*stream_), HasSubstr("3 parts"));
  stream_->write_message({good, payload});
  const auto reply = stream_->read_control();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->header.kind, Kind::kReply);
  EXPECT_EQ(reply->payload, payload);
}

TEST_F(Hostile, AMembersSpoofedControlFramesAreRefused) {
  raw_.control().write_frame(control_header(Kind::kFailure, {Role::kWorker, 0}, roster_.epoch), "a lie");
  EXPECT_THAT(expect_reject(raw_.control()), HasSubstr("sender is worker 0"));
}

TEST_F(Hostile, ALateNodeIsToldThatTheJobHasBegun) {
  ZmqOptions late = node_of(options_, scheduler_, Role::kWorker, 0);
  EXPECT_THAT(error_of([&] { connect_zmq(late); }),
              HasSubstr("the job has begun and all its nodes are here"));
}

}  // namespace
}  // namespace gradwire::transport
