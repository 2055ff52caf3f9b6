#include "kvstore/server/mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "compress/codecs.h"
#include "tests/kvstore/requests.h"

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;
using testing::SizeIs;
using transport::Frame;
using transport::Kind;

const MirrorLog::Clock::time_point kStart{};

Frame push(std::uint64_t step, std::vector<float> values, std::uint32_t worker = 0) {
  return request(Kind::kPush, step, values, worker);
}

Answers an_answer(std::uint64_t step) {
  Answers answers;
  answers.push_back({0, push(step, {1})});
  return answers;
}

TEST(MirrorNumber, IsPackedInOneField) {
  const MirrorNumber number{(std::uint64_t{1} << 47) + 3, 254, 255};
  EXPECT_EQ(unpack(pack(number)).place, number.place);
  EXPECT_EQ(unpack(pack(number)).log, 254);
  EXPECT_EQ(unpack(pack(number)).logs, 255);
  EXPECT_EQ(pack({1, 0, 1}), 0x0100000000000001U);
}

TEST(MirrorLog, HoldsAnswersUntilTheMirrorHasWhatTheyRestOn) {
  MirrorLog log(0, 1);
  log.forward(0, push(0, {1}), kStart);
  log.hold(an_answer(0));
  log.forward(1, push(0, {1}), kStart);
  log.hold(an_answer(1));
  EXPECT_THAT(log.release(), SizeIs(0));
  log.acknowledge(2, kStart);  // has the first
  const Answers first = log.release();
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_EQ(first[0].frame.header.step, 0U);
  log.acknowledge(1, kStart);  // late
  log.acknowledge(9, kStart);  // of what was never sent
  EXPECT_THAT(log.release(), SizeIs(0));
  log.acknowledge(3, kStart);
  EXPECT_THAT(log.release(), SizeIs(1));
  EXPECT_TRUE(log.empty());
}

TEST(MirrorLog, WithoutItsMirrorNothingWaits) {
  MirrorLog log(0, 1);
  log.forward(0, push(0, {1}), kStart);
  log.hold(an_answer(0));
  log.forgo();
  EXPECT_THAT(log.release(), SizeIs(1));
  EXPECT_THAT(log.overdue(kStart + 1h, 1s), SizeIs(0));
}

TEST(MirrorLog, SendsAgainWhatIsNotAcknowledgedInTime) {
  MirrorLog log(2, 3);
  for (std::uint32_t worker = 0; worker < 3; ++worker) log.forward(worker, push(0, {1}), kStart);
  EXPECT_THAT(log.overdue(kStart + 999ms, 1s), SizeIs(0));
  log.acknowledge(2, kStart + 999ms);  // progress: patience begins anew
  EXPECT_THAT(log.overdue(kStart + 1500ms, 1s), SizeIs(0));
  const auto again = log.overdue(kStart + 2s, 1s);
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_EQ(again[0].header.number, pack({2, 2, 3}));
  EXPECT_EQ(again[0].header.on_behalf, (transport::Node{transport::Role::kWorker, 1}));
  EXPECT_THAT(log.overdue(kStart + 2s, 1s), SizeIs(0));
}

TEST(MirrorLog, SendsAgainAtOnceWhatTheMirrorAsksForTwice) {
  MirrorLog log(0, 1);
  for (std::uint32_t worker = 0; worker < 4; ++worker) log.forward(worker, push(0, {1}), kStart);
  EXPECT_THAT(log.acknowledge(2, kStart), SizeIs(0));
  const auto again = log.acknowledge(2, kStart);  // the third came, and the second had not
  ASSERT_THAT(again, SizeIs(3));
  EXPECT_EQ(unpack(again[0].header.number).place, 2U);
  EXPECT_THAT(log.acknowledge(2, kStart), SizeIs(0)) << "the fourth, which was on its way";
  EXPECT_THAT(log.acknowledge(4, kStart), SizeIs(0));
  EXPECT_THAT(log.acknowledge(4, kStart), SizeIs(1));
  EXPECT_THAT(log.acknowledge(5, kStart), SizeIs(0));
  EXPECT_THAT(log.acknowledge(5, kStart), SizeIs(0)) << "nothing is missing";
  log.forward(0, push(1, {1}), kStart);
  EXPECT_THAT(log.acknowledge(5, kStart), SizeIs(1)) << "now it is";
}

TEST(MirrorLog, AsksLessOftenOfAMirrorThatSaysNothing) {
  MirrorLog log(0, 1);
  log.forward(0, push(0, {1}), kStart);
  std::vector<int> sent_after;
  for (int second = 1; second <= 50; ++second) {
    if (!log.overdue(kStart + second * 1s, 1s).empty()) sent_after.push_back(second);
  }
  EXPECT_THAT(sent_after, testing::ElementsAre(1, 3, 7, 15, 31, 47));
}

TEST(MirrorLog, KnowsForHowLongNothingWasAcknowledged) {
  MirrorLog log(0, 1);
  EXPECT_EQ(log.waited(kStart + 1h), 0s);
  log.forward(0, push(0, {1}), kStart);
  log.forward(1, push(0, {1}), kStart + 1s);
  EXPECT_THAT(log.overdue(kStart + 2s, 1s), SizeIs(2));
  EXPECT_EQ(log.waited(kStart + 3s), 3s);
  log.acknowledge(2, kStart + 4s);
  EXPECT_EQ(log.waited(kStart + 5s), 1s);
  log.acknowledge(3, kStart + 6s);
  EXPECT_EQ(log.waited(kStart + 9s), 0s);
}

TEST(MirrorIntake, TakesWhatIsNextOnceAndWhole) {
  MirrorLog log(0, 1);
  MirrorIntake intake;
  Frame worker_push = push(0, {1, 2}, 7);
  worker_push.payload.seal();
  Frame first = log.forward(7, worker_push, kStart);
  Frame again = {first.header, first.payload.share()};
  Frame second = log.forward(8, push(0, {3}, 8), kStart);
  EXPECT_FALSE(intake.take(second));  // the first is missing
  Frame damaged = {first.header, first.payload.copy()};
  damaged.payload.seal(*worker_push.payload.checksum());
  damaged.payload.bytes()[0] ^= std::byte{1};
  EXPECT_FALSE(intake.take(damaged));
  EXPECT_TRUE(intake.take(first));
  EXPECT_EQ(first.header, worker_push.header);
  EXPECT_FALSE(intake.take(again));
  EXPECT_EQ(intake.next(), 2U);
  EXPECT_TRUE(intake.take(second));
  EXPECT_FALSE(intake.take(worker_push));  // on nobody's behalf
}

/// A server's end and its mirror's, over a link that loses, doubles, reorders and damages.
class Pair {
 public:
  explicit Pair(unsigned seed) : random_(seed) {}

  void give(std::uint32_t worker, Frame frame) {
    Frame passed = log_.forward(worker, frame, now_);
    for (auto& answer : handle(primary_, worker, std::move(frame))) told_.push_back(std::move(answer));
    wire_.push_back(std::move(passed));
    carry();
  }

  /// Until all has arrived.
  void settle() {
    for (int i = 0; i < 1000 && !wire_.empty(); ++i) carry();
    for (int i = 0; i < 10'000; ++i) {
      now_ += 1s;
      if (log_.waited(now_) == 0s) return;
      put(log_.overdue(now_, 1s));
      while (!wire_.empty()) carry();
    }
    FAIL() << "the mirror has not heard it all";
  }

  Aggregator& mirror() { return mirror_; }
  Answers& told() { return told_; }

 private:
  void put(std::vector<Frame> frames) {
    for (Frame& frame : frames) wire_.push_back(std::move(frame));
  }
  void carry() {
    if (wire_.empty() || random_() % 3 == 0) return;
    const auto chosen = wire_.begin() + static_cast<std::ptrdiff_t>(random_() % wire_.size());
    Frame frame{chosen->header, chosen->payload.copy()};
    if (chosen->payload.size_bytes() > 0) frame.payload.seal();
    const unsigned fate = random_() % 8;
    if (fate != 0) wire_.erase(chosen);  // else it comes twice
    if (fate == 1) return;
    if (fate == 2 && frame.payload.size_bytes() > 0) frame.payload.bytes()[0] ^= std::byte{1};
    if (intake_.take(frame)) handle(mirror_, frame.header.sender.rank, std::move(frame));
    if (fate != 3) put(log_.acknowledge(intake_.next(), now_));
  }

  std::mt19937 random_;
  MirrorLog::Clock::time_point now_ = kStart;
  MirrorLog log_{0, 1};
  MirrorIntake intake_;
  Aggregator primary_{2}, mirror_{2};
  std::vector<Frame> wire_;
  Answers told_;
};

Frame probe_of(std::uint64_t step, std::size_t count) {
  Frame frame = push(step, std::vector<float>(count));
  frame.header.kind = Kind::kProbe;
  frame.payload = {};
  return frame;
}

std::string bits_of(const Frame& frame) { return text_of(frame); }

class AMirror : public testing::TestWithParam<const char*> {};

TEST_P(AMirror, KnowsToTheBitWhatWasAnsweredWhateverTheLinkDoes) {
  constexpr std::size_t kCount = 500;
  const auto codec = compress::make(compress::parse_spec(GetParam()));
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Pair pair(seed);
    std::mt19937 random(seed);
    std::vector<std::vector<float>> residuals(2, std::vector<float>(kCount));
    for (std::uint64_t step = 0; step < 5; ++step) {
      for (std::uint32_t worker = 0; worker < 2; ++worker) {
        std::vector<float> grad(kCount);
        for (float& g : grad) g = static_cast<float>(random() % 2001) / 1000 - 1;
        Frame frame = push(step, grad, worker);
        frame.header.codec = static_cast<std::uint8_t>(codec->wire_id());
        frame.header.codec_parameters = codec->wire_parameters();
        frame.header.reply = static_cast<std::uint8_t>(compress::ReplyKind::kSame);
        frame.payload = transport::Buffer::allocate(codec->max_encoded_size(kCount));
        const auto encoded = codec->encode(grad, codec->lossy() ? residuals[worker] : std::span<float>(), {},
                                           frame.payload.bytes(), {});
        frame.payload.truncate(encoded.bytes);
        pair.give(worker, std::move(frame));
      }
      pair.settle();
      const Answers known = handle(pair.mirror(), 0, probe_of(step, kCount));
      ASSERT_THAT(known, SizeIs(1));
      ASSERT_EQ(known[0].frame.header.kind, Kind::kReply) << text_of(known[0].frame);
      EXPECT_EQ(bits_of(known[0].frame), bits_of(pair.told().back().frame)) << "seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, AMirror,
                         testing::Values("none", "fp16", "2bit:threshold=0.5", "topk:ratio=0.1", "int8"));

}  // namespace
}  // namespace gradwire::kvstore
