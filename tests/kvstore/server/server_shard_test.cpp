// A server and its mirror, where the other of the two does not do its part.
#include "kvstore/server/server_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "tests/kvstore/mirrored_job.h"
#include "tests/kvstore/requests.h"
#include "tests/transport/ear.h"

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using transport::Ear;
using transport::Frame;
using transport::InprocNetwork;
using transport::Kind;
using transport::Node;
using transport::Role;
using Values = std::vector<float>;

constexpr std::size_t kSmall = 300;

/// A node of a job that a test speaks for.
class Spoken {
 public:
  Spoken(InprocNetwork& network, Node node) : messenger_(network.connect(node)) { messenger_->attach(ear_); }
  ~Spoken() { messenger_->detach(); }
  Spoken(const Spoken&) = delete;
  Spoken& operator=(const Spoken&) = delete;

  void send(Node to, Frame frame) {
    std::vector<Frame> frames;
    frames.push_back(std::move(frame));
    messenger_->send(to, std::move(frames));
  }
  Ear& ear() { return ear_; }

 private:
  Ear ear_;
  std::unique_ptr<transport::Messenger> messenger_;
};

/// All answers wait for the mirror's word, and the workers know of no server but the first.
TEST(ServerShard, AServerWhoseMirrorDoesNotAnswerNamesIt) {
  JobSize size = mirrored_size(2, 2);
  size.engine.slow_abort = 60s;
  ServerOptions options;
  options.slow_warning = 300ms;
  options.slow_abort = 1500ms;
  std::mutex mutex;
  std::vector<std::string> notices;
  options.notify = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    notices.push_back(text);
  };
  const auto names_both = AllOf(HasSubstr("server 0 has waited"), HasSubstr("its mirror, server 1"));
  InprocNetwork network(2, 2, 1);
  try {
    run_mirrored(
        size, network, {0, 1},
        [](Engine& engine) {
          const auto key = engine.declare(std::vector<KeySpec>{{"w", {kSmall}}})[0];  // at server 0
          Values values(kSmall, 1.0F);
          engine.push_pull(key, values, values, 0).wait();
        },
        [&](std::uint32_t rank, Line line) -> Line {
          if (rank != 1) return line;
          return std::make_unique<Without>(std::move(line), [](Node, const transport::FrameHeader& header) {
            return header.kind == Kind::kMirrored;
          });
        },
        options);
    FAIL() << "nothing was acknowledged";
  } catch (const transport::TransportError& error) {
    EXPECT_THAT(error.what(), names_both);
  }
  ASSERT_THAT(notices, testing::SizeIs(1));
  EXPECT_THAT(notices[0], names_both);
}

TEST(ServerShard, OnlyItsMirrorsWordReleasesAnswers) {
  constexpr Node kServer{Role::kServer, 0};
  InprocNetwork network(1, 3, 1);
  Server server(network.connect(kServer), {});
  Spoken mirror(network, {Role::kServer, 1}), mirrored_one(network, {Role::kServer, 2});
  Spoken worker(network, {Role::kWorker, 0});
  worker.send(kServer, request(Kind::kInit, kNoStep - 1, Values{1}));
  mirror.ear().take_frames(1);
  mirrored_one.send(kServer, mirrored({2, 0, 1}));
  worker.send(kServer, request(Kind::kInit, kNoStep - 2, Values{2}));
  mirror.ear().take_frames(1);  // and by now what was said before has been heeded
  EXPECT_THAT(worker.ear().take_frames(0), IsEmpty());
  mirror.send(kServer, mirrored({3, 0, 1}));
  worker.ear().take_frames(2);
}

TEST(ServerShard, AMirrorThatDoesNotServeYetKeepsSoMuchAndNoMore) {
  constexpr Node kMirror{Role::kServer, 1}, kDead{Role::kServer, 0};
  constexpr std::uint64_t kRequests = 70, kLast = 1'000;
  InprocNetwork network(1, 2, 1);
  Server server(network.connect(kMirror), {});
  Spoken worker(network, {Role::kWorker, 0});
  const auto init = [&](std::uint64_t key, const Values& values) {
    Frame frame = request(Kind::kInit, kNoStep - 1, values);
    frame.header.key = key;
    frame.header.on_behalf = kDead;
    worker.send(kMirror, std::move(frame));
  };
  const Values mebibyte(std::size_t{1} << 18);
  for (std::uint64_t key = 0; key < kRequests; ++key) init(key, mebibyte);
  network.lose(kDead.rank);
  init(kLast, {1});
  std::vector<std::uint64_t> answered;
  while (!std::ranges::count(answered, kLast) && !HasFailure()) {
    for (const auto& heard : worker.ear().take_frames(1)) {
      for (const Frame& frame : heard.frames) answered.push_back(frame.header.key);
    }
  }
  EXPECT_THAT(answered, SizeIs(63 + 1));  // of 64 MiB, with their headers
}

}  // namespace
}  // namespace gradwire::kvstore
