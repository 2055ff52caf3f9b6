#include "transport/decorators/faulty_messenger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

#include "tests/transport/ear.h"
#include "transport/inproc/inproc.h"

namespace gradwire::transport {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

constexpr Node kWorker{Role::kWorker, 0};
constexpr Node kServer{Role::kServer, 0};

Frame numbered(std::uint64_t number, std::size_t bytes = 64) {
  Frame frame;
  frame.header.kind = Kind::kPush;
  frame.header.key = number;
  frame.payload = Buffer::allocate(bytes);
  if (bytes > 0) std::memset(frame.payload.bytes().data(), static_cast<int>(number), bytes);
  return frame;
}

/// A worker that sends through a FaultyMessenger to a server that listens.
class Pair {
 public:
  explicit Pair(const std::string& spec) : faults_(std::make_shared<Faults>(parse_faults(spec))) {
    InprocNetwork network(1, 1);
    server_ = network.connect(kServer);
    worker_ = std::make_unique<FaultyMessenger>(network.connect(kWorker), faults_);
    server_->attach(ear_);
    worker_->attach(unused_);
  }
  ~Pair() {
    server_->detach();
    worker_->detach();
  }

  void send(std::uint64_t first, std::uint64_t count, std::size_t bytes = 64) {
    for (std::uint64_t n = first; n < first + count; ++n) {
      std::vector<Frame> frames;
      frames.push_back(numbered(n, bytes));
      worker_->send(kServer, std::move(frames));
    }
  }
  /// What the server has heard once the worker has left.
  std::vector<Frame> heard() {
    worker_->leave(kPatience);
    EXPECT_TRUE(ear_.hears_goodbye_of(kWorker));
    std::vector<Frame> frames;
    for (auto& batch : ear_.take_frames(0)) {
      for (Frame& frame : batch.frames) frames.push_back(std::move(frame));
    }
    return frames;
  }
  Messenger& worker() { return *worker_; }
  std::vector<std::uint64_t> take(std::size_t count) {
    std::vector<std::uint64_t> keys;
    for (const auto& batch : ear_.take_frames(count)) {
      for (const Frame& frame : batch.frames) keys.push_back(frame.header.key);
    }
    return keys;
  }
  std::vector<std::string> unmet_kills() const { return faults_->counts().unmet_kills; }
  std::uint64_t count(Fault fault) const { return faults_->counts().of(fault); }

 private:
  Ear ear_, unused_;
  std::shared_ptr<Faults> faults_;  // owners: this and the messenger
  std::unique_ptr<Messenger> server_, worker_;
};

std::vector<std::uint64_t> keys_of(const std::vector<Frame>& frames) {
  std::vector<std::uint64_t> keys;
  for (const Frame& frame : frames) keys.push_back(frame.header.key);
  return keys;
}

std::vector<std::uint64_t> keys_after(const std::string& spec, std::uint64_t count = 2000) {
  Pair pair(spec);
  pair.send(0, count);
  return keys_of(pair.heard());
}

TEST(FaultyMessenger, WithoutFaultsHandsEverythingOn) {
  std::vector<std::uint64_t> all(100);
  std::iota(all.begin(), all.end(), 0U);
  EXPECT_EQ(keys_after("seed=1", 100), all);
}

TEST(FaultyMessenger, DropsTheShareAskedFor) {
  Pair pair("seed=3,drop=10%");
  pair.send(0, 5000);
  const auto dropped = pair.count(Fault::kDropped);
  EXPECT_THAT(pair.heard(), SizeIs(5000 - dropped));
  EXPECT_NEAR(static_cast<double>(dropped), 500, 5 * 21.3);  // five standard deviations of the binomial
}

TEST(FaultyMessenger, TheSameSeedDoesTheSameToTheSameFrames) {
  EXPECT_EQ(keys_after("seed=3,drop=10%"), keys_after("seed=3,drop=10%"));
  EXPECT_NE(keys_after("seed=3,drop=10%"), keys_after("seed=4,drop=10%"));
}

TEST(FaultyMessenger, AnotherFaultChangesNothingOfTheFirst) {
  auto with_both = keys_after("seed=3,drop=10%,duplicate=10%");
  with_both.erase(std::unique(with_both.begin(), with_both.end()), with_both.end());
  EXPECT_EQ(with_both, keys_after("seed=3,drop=10%"));
}

TEST(FaultyMessenger, DuplicatesArriveTwiceWithTheSameBytes) {
  Pair pair("seed=3,duplicate=10%");
  pair.send(0, 1000);
  const auto duplicated = pair.count(Fault::kDuplicated);
  EXPECT_GT(duplicated, 50U);
  const auto frames = pair.heard();
  EXPECT_THAT(frames, SizeIs(1000 + duplicated));
  for (const Frame& frame : frames)
    EXPECT_EQ(frame.payload.bytes().back(), static_cast<std::byte>(frame.header.key));
}

TEST(FaultyMessenger, ReorderedFramesAreOvertakenAndAllArrive) {
  auto keys = keys_after("seed=3,reorder=10%");
  EXPECT_FALSE(std::is_sorted(keys.begin(), keys.end()));
  std::sort(keys.begin(), keys.end());
  std::vector<std::uint64_t> all(2000);
  std::iota(all.begin(), all.end(), 0U);
  EXPECT_EQ(keys, all);
}

TEST(FaultyMessenger, AFrameThatNothingOvertakesGoesAllTheSame) {
  Pair pair("reorder=100%");
  pair.send(0, 1);
  EXPECT_THAT(pair.take(1), ElementsAre(0U));
}

TEST(FaultyMessenger, DamageIsFoundByTheChecksumThoughTheLinkHasNone) {
  Pair pair("seed=3,corrupt=10%");
  pair.send(0, 1000);
  const auto corrupted = pair.count(Fault::kCorrupted);
  EXPECT_GT(corrupted, 50U);
  std::uint64_t found = 0;
  for (const Frame& frame : pair.heard()) {
    const auto bytes = frame.payload.bytes();
    const bool is_whole = std::ranges::all_of(
        bytes, [&](std::byte b) { return b == static_cast<std::byte>(frame.header.key); });
    EXPECT_EQ(frame.payload.is_intact(), is_whole);
    found += is_whole ? 0 : 1;
  }
  EXPECT_EQ(found, corrupted);
}

TEST(FaultyMessenger, TheSendersOwnMemoryIsNotDamaged) {
  Pair pair("corrupt=100%");
  std::vector<std::byte> own(64, std::byte{1});
  std::vector<Frame> frames;
  frames.push_back({numbered(0).header, Buffer::borrow(own)});
  pair.worker().send(kServer, std::move(frames));
  EXPECT_FALSE(pair.heard().at(0).payload.is_intact());
  EXPECT_EQ(own, std::vector<std::byte>(64, std::byte{1}));
}

TEST(FaultyMessenger, WhereThereIsNoPayloadDamageIsLoss) {
  Pair pair("corrupt=100%");
  pair.send(0, 10, 0);
  EXPECT_THAT(pair.heard(), SizeIs(0));
}

TEST(FaultyMessenger, DelayedFramesArriveAfterTheirTime) {
  Pair pair("delay=50ms@100%");
  const auto begin = std::chrono::steady_clock::now();
  pair.send(0, 3);
  EXPECT_THAT(pair.take(3), SizeIs(3));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
}

TEST(FaultyMessenger, ASlowNodesFramesTakeTheirBytesTimeAndKeepTheirOrder) {
  Pair pair("slow=worker:0@800kbit");  // 100 000 bytes a second
  const auto begin = std::chrono::steady_clock::now();
  pair.send(0, 10, 1000 - kHeaderBytes);
  EXPECT_THAT(pair.take(10), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(100));
}

TEST(FaultyMessenger, OnlyTheNodeNamedIsSlow) {
  Pair pair("slow=worker:1@1bit");
  pair.send(0, 3);
  EXPECT_THAT(pair.take(3), SizeIs(3));
}

TEST(FaultyMessenger, ThoseApartDoNotHearEachOtherUntilItIsOver) {
  Pair pair("partition=worker:*|server:0@0s+100ms");
  pair.send(0, 3);
  EXPECT_EQ(pair.count(Fault::kPartitioned), 3U);
  std::this_thread::sleep_for(std::chrono::milliseconds(110));
  pair.send(3, 2);
  EXPECT_THAT(pair.take(2), ElementsAre(3, 4));
}

TEST(FaultyMessenger, OthersHearEachOtherMeanwhile) {
  Pair pair("partition=worker:1|server:0@0s+1min");
  pair.send(0, 3);
  EXPECT_THAT(pair.take(3), SizeIs(3));
}

TEST(FaultyMessenger, LeavingSendsWhatWasHeldBack) {
  Pair pair("delay=1min@100%");
  pair.send(0, 5);
  EXPECT_THAT(keys_of(pair.heard()), ElementsAre(0, 1, 2, 3, 4));
}

TEST(FaultyMessenger, DestroyingItSendsWhatWasHeldBack) {
  for (const char* spec : {"delay=1min@100%", "reorder=100%", "slow=worker:0@1bit"}) {
    InprocNetwork network(1, 1);
    Ear ear;
    const auto server = network.connect(kServer);
    server->attach(ear);
    {
      FaultyMessenger worker(network.connect(kWorker), std::make_shared<Faults>(parse_faults(spec)));
      std::vector<Frame> frames;
      frames.push_back(numbered(7));
      worker.send(kServer, std::move(frames));
    }
    EXPECT_TRUE(ear.hears_goodbye_of(kWorker)) << spec;
    EXPECT_THAT(ear.take_frames(0), SizeIs(1)) << spec;
    server->detach();
  }
}

TEST(FaultyMessenger, TellsWhetherFramesMayBeLost) {
  EXPECT_TRUE(Pair("drop=1%").worker().loses_frames());
  EXPECT_FALSE(Pair("delay=1ms@1%,slow=worker:0@1gbit").worker().loses_frames());
}

/// What ends a process of its own that does this, so that the test's lives on.
int signal_of(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

int signal_after(const std::string& spec, FaultEvent event, int times) {
  return signal_of([&] {
    Faults faults(parse_faults(spec));
    for (int i = 0; i < times; ++i) faults.saw(kWorker, event);
  });
}

TEST(Faults, KillAtTheEventAskedForAndNotBefore) {
  EXPECT_EQ(signal_after("kill=worker:0@push:3", FaultEvent::kPush, 3), SIGKILL);
  EXPECT_EQ(signal_after("kill=worker:0@push:3", FaultEvent::kPush, 2), 0);
  EXPECT_EQ(signal_after("kill=worker:0@push:3", FaultEvent::kInit, 3), 0);
  EXPECT_EQ(signal_after("kill=worker:1@push:3", FaultEvent::kPush, 3), 0);
}

TEST(FaultyMessenger, CountsNoPushThatIsPassedOnToAMirror) {
  const auto send_three = [](std::optional<Node> on_behalf) {
    Pair pair("kill=worker:0@push:3");
    for (std::uint64_t n = 0; n < 3; ++n) {
      std::vector<Frame> frames;
      frames.push_back(numbered(n));
      frames[0].header.on_behalf = on_behalf;
      pair.worker().send(kServer, std::move(frames));
    }
  };
  EXPECT_EQ(signal_of([&] { send_three(std::nullopt); }), SIGKILL);
  EXPECT_EQ(signal_of([&] { send_three(Node{Role::kServer, 1}); }), SIGKILL) << "to who serves in its place";
  EXPECT_EQ(signal_of([&] { send_three(kWorker); }), 0);
}

TEST(Faults, SayWhichKillsDidNotHappen) {
  Pair pair("kill=worker:0@push:3,kill=worker:*@pull,kill=worker:1@push,kill=server:0@push");
  for (std::uint64_t n = 0; n < 2; ++n) {
    std::vector<Frame> frames;
    frames.push_back(numbered(n));
    pair.worker().send(kServer, std::move(frames));
  }
  EXPECT_THAT(pair.unmet_kills(), ElementsAre("kill=worker:0@push:3 did not happen: worker 0 came to 2",
                                              "kill=worker:*@pull:1 did not happen: worker 0 came to 0"));
  const Faults idle(parse_faults("kill=worker:0@push:3"));
  EXPECT_EQ(to_string(idle.counts()), "0 frames") << "worker 0 is another process's";
}

TEST(Faults, SayWhatTheyHaveDone) {
  Faults faults(parse_faults("drop=1%"));
  faults.count_frame();
  faults.count_frame();
  faults.count(Fault::kDropped);
  EXPECT_EQ(to_string(faults.counts()), "2 frames: 1 dropped");
}

}  // namespace
}  // namespace gradwire::transport
