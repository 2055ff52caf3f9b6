// A live job over ZeroMQ, and strangers and members that say wrong things at its ports: they are refused with
// a reason, and the job goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "tests/transport/ear.h"
#include "tests/transport/zmq/zmq_jobs.h"
#include "transport/zmq/data_links.h"

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

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
  void on_goodbye(Node, const std::string&) override {}

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
  void on_goodbye(Node, const std::string&) override {}

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

  static RawPeer stranger(const std::string& endpoint) {
    RawPeer peer(endpoint);
    peer.handshake();
    return peer;
  }
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
    for (int i = 0; i < 60; ++i) {
      RawPeer peer = stranger(endpoint);
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
    for (const Kind kind : {Kind::kPush, Kind::kFailure, Kind::kExchange, Kind::kRoster}) {
      RawPeer peer = stranger(endpoint);
      peer.write_frame(control_header(kind, {Role::kWorker, 0}, roster_.epoch), "text");
      EXPECT_THAT(expect_reject(peer), HasSubstr("the first frame of a connection must be a hello"));
    }
  }
}

TEST_F(Hostile, AHelloOfAnotherEpochOrRankIsRefused) {
  const auto answer_to = [&](Node sender, std::uint64_t epoch, const std::string& text) {
    RawPeer peer = stranger(roster_.endpoints[0]);
    peer.write_frame(control_header(Kind::kHello, sender, epoch), text);
    return expect_reject(peer);
  };
  const std::string stream = to_text(StreamHello{0, 1});
  EXPECT_THAT(answer_to({Role::kWorker, 0}, roster_.epoch + 1, stream),
              AllOf(HasSubstr("hello: from worker 0 in epoch"), HasSubstr("expected a worker of this job")));
  EXPECT_THAT(answer_to({Role::kWorker, 5}, roster_.epoch, stream), HasSubstr("hello: from worker 5"));
  EXPECT_THAT(answer_to({Role::kServer, 0}, roster_.epoch, stream), HasSubstr("hello: from server 0"));
  EXPECT_THAT(answer_to({Role::kWorker, 0}, roster_.epoch, stream),
              HasSubstr("stream 0 of worker 0 or this connection is in use"));
  EXPECT_THAT(answer_to({Role::kWorker, 0}, roster_.epoch, "stream=x\nstreams=1\n"),
              HasSubstr("stream is 'x', expected a whole number"));
}

// Answers that he does not read would be kept for him, all of them.
TEST_F(Hostile, AStrangerIsAnsweredOnceAConnection) {
  for (const std::string& endpoint : both_endpoints()) {
    RawPeer peer = stranger(endpoint);
    for (int i = 0; i < 2000; ++i)
      peer.write_frame(control_header(Kind::kPush, {Role::kWorker, 0}, roster_.epoch), "text");
    EXPECT_THAT(expect_reject(peer), HasSubstr("the first frame of a connection must be a hello"));
    EXPECT_TRUE(peer.is_silent_for(500ms));
    RawPeer another = stranger(endpoint);
    another.write_frame(control_header(Kind::kPush, {Role::kWorker, 0}, roster_.epoch), "text");
    EXPECT_THAT(expect_reject(another), HasSubstr("the first frame")) << "who comes anew is told";
  }
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

// --- before the roster ---

// What is kept for the roster to judge is bounded, and a worker takes a reject of its hello as final.
TEST(ServerLinks, StrangersBeforeTheRosterKeepNoWorkerOut) {
  const ZmqContext context;
  Inbox server_inbox, worker_inbox;
  Traffic server_traffic, worker_traffic;
  RejectionLog refusals(nullptr);
  ServerLinks server({server_inbox, server_traffic, refusals}, context, {{"tcp://127.0.0.1:*"}, {}, {}},
                     1 << 20, std::nullopt);
  RawPeer stranger(server.endpoint());
  stranger.handshake();
  const FrameHeader hello = control_header(Kind::kHello, {Role::kWorker, 0}, 7);
  for (int i = 0; i < 5000; ++i) stranger.write_frame(hello, to_text(StreamHello{0, 1}));
  stranger.write_frame(hello, std::string(5000, 'x'));
  // It is answered, so all before it have been read.
  while (stranger.is_silent_for(1ms)) server.take_messages();

  const World world{1, 1, 9};
  std::string refused;
  WorkerLinks worker({worker_inbox, worker_traffic, refusals}, context, {server.endpoint()}, 1, 1 << 20,
                     std::nullopt, [&](const std::string& text) { refused = text; });
  worker.begin(world, {Role::kWorker, 0}, std::chrono::steady_clock::now());
  const auto serve_until = [&](std::chrono::steady_clock::time_point end) {
    while (!worker.is_open() && refused.empty() && std::chrono::steady_clock::now() < end) {
      server.take_messages();
      worker.take_messages();
      worker.tick(std::chrono::steady_clock::now());
      std::this_thread::sleep_for(1ms);
    }
  };
  serve_until(std::chrono::steady_clock::now() + 500ms);
  server.begin(world, {Role::kServer, 0}, std::chrono::steady_clock::now());
  serve_until(std::chrono::steady_clock::now() + kPatience);
  EXPECT_EQ(refused, "");
  EXPECT_TRUE(worker.is_open());
}

TEST(ServerLinks, KeepsShortMessagesForTheRosterAndRefusesLongOnes) {
  const ZmqContext context;
  Inbox inbox;
  Traffic traffic;
  RejectionLog refusals(nullptr);
  ServerLinks links({inbox, traffic, refusals}, context, {{"tcp://127.0.0.1:*"}, {}, {}}, 1 << 20,
                    std::nullopt);
  std::jthread serving([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      links.take_messages();
      std::this_thread::sleep_for(2ms);
    }
  });
  RawPeer peer(links.endpoint());
  peer.handshake();
  const FrameHeader hello = control_header(Kind::kHello, {Role::kWorker, 0}, 7);
  peer.write_frame(hello, to_text(StreamHello{0, 1}));
  peer.write_frame(hello, std::string(5000, 'x'));
  const auto answer = peer.read_control();
  ASSERT_TRUE(answer) << "the long one is answered, the short one waits";
  EXPECT_EQ(answer->header.kind, Kind::kReject);
  EXPECT_THAT(answer->payload, HasSubstr("expected a worker of this job"));
}

// libzmq ends a process for what these say while their socket closes. Nodes speak ZMTP 3.
TEST_F(Hostile, OldProtocolsAreTurnedAwayBeforeTheySayAnything) {
  using namespace std::string_literals;
  const std::string signature = "\xFF\0\0\0\0\0\0\0\x01\x7F"s;
  for (const std::string& endpoint : both_endpoints()) {
    for (const std::string& greeting : {"\x01\0"s, signature + "\0"s + "\x05"s, signature + "\x01\x05"s}) {
      RawPeer peer(endpoint);
      peer.write(greeting);
      EXPECT_TRUE(peer.is_closed_by_peer());
    }
  }
}

}  // namespace
}  // namespace gradwire::transport
