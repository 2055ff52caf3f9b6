// Aggregator where every push is a round of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compress/codecs.h"
#include "kvstore/wire/answer.h"
#include "tests/kvstore/requests.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using transport::Frame;
using transport::Kind;
using Floats = std::vector<float>;

const Floats kZeros = {0, 0, 0};
const Floats kOnes = {1, 1, 1};

/// Of this many workers, whose key 4 begins at zeros and has pushes added to it, times 2.
class AsyncServer {
 public:
  explicit AsyncServer(std::uint32_t workers, const std::string& rounds = "at_once") : aggregator_(workers) {
    EXPECT_EQ(handle(aggregator_, 0, command("rounds " + rounds)).at(0).frame.header.kind, Kind::kAck);
    handle(aggregator_, 0, command("optimizer test rescale_grad=2"));
    handle(aggregator_, 0, request(Kind::kInit, 0, kZeros));
  }

  Answers push(std::uint32_t worker, std::uint64_t step) {
    return handle(aggregator_, worker, request(Kind::kPush, step, kOnes, worker));
  }
  /// A push whose worker wants the weight back.
  Answers push_pull(std::uint32_t worker, std::uint64_t step) {
    Frame frame = request(Kind::kPush, step, kOnes, worker);
    frame.header.content = static_cast<std::uint8_t>(Content::kWeight);
    return handle(aggregator_, worker, std::move(frame));
  }
  Answers probe(std::uint32_t worker, std::uint64_t step) {
    Frame frame = request(Kind::kProbe, step, kOnes, worker);
    frame.payload = {};
    return handle(aggregator_, worker, std::move(frame));
  }
  Floats pull(std::uint32_t worker) {
    Frame frame = request(Kind::kPull, 0, kOnes, worker);
    frame.payload = {};
    return floats_of(handle(aggregator_, worker, std::move(frame)).at(0).frame);
  }
  Answers forget(std::uint32_t worker) {
    Answers answers;
    aggregator_.forget_worker(worker, answers);
    return answers;
  }
  Answers handle_raw(std::uint32_t worker, Frame frame) {
    return handle(aggregator_, worker, std::move(frame));
  }

 private:
  Aggregator aggregator_;
};

std::vector<std::uint32_t> ranks_of(const Frame& frame) {
  std::vector<std::uint32_t> ranks(frame.payload.size_bytes() / sizeof(std::uint32_t));
  std::memcpy(ranks.data(), frame.payload.bytes().data(), frame.payload.size_bytes());
  return ranks;
}

TEST(AggregatorAtOnce, APushIsAppliedAndAnsweredAloneWithTheWeightOrWithout) {
  AsyncServer server(3);
  const auto acknowledged = server.push(1, 0);
  ASSERT_THAT(acknowledged, SizeIs(1));
  EXPECT_EQ(acknowledged[0].worker, 1U);
  EXPECT_EQ(acknowledged[0].frame.header.kind, Kind::kAck);
  EXPECT_EQ(acknowledged[0].frame.payload.size_bytes(), 0U);
  const auto answered = server.push_pull(2, 0);
  ASSERT_THAT(answered, SizeIs(1));
  EXPECT_EQ(answered[0].worker, 2U);
  EXPECT_EQ(answered[0].frame.header.kind, Kind::kValue);
  EXPECT_EQ(answered[0].frame.header.content, static_cast<std::uint8_t>(Content::kWeight));
  EXPECT_THAT(floats_of(answered[0].frame), ElementsAre(4, 4, 4));
  EXPECT_THAT(server.pull(0), ElementsAre(4, 4, 4));
}

TEST(AggregatorAtOnce, AnAnswerTellsHowStaleThePushWas) {
  AsyncServer server(2);
  EXPECT_EQ(staleness_of(server.push(0, 0).at(0).frame.header), 0U);
  EXPECT_EQ(staleness_of(server.push(0, 1).at(0).frame.header), 0U);
  EXPECT_EQ(staleness_of(server.push_pull(1, 0).at(0).frame.header), 2U);
  EXPECT_EQ(staleness_of(server.push(1, 1).at(0).frame.header), 0U);
  EXPECT_EQ(staleness_of(server.push(0, 2).at(0).frame.header), 2U);  // an acknowledgement shows no weight
  server.pull(0);
  EXPECT_EQ(staleness_of(server.push(0, 3).at(0).frame.header), 0U);
}

TEST(AggregatorAtOnce, ARepeatedPushChangesNothingAndIsAnsweredAgain) {
  AsyncServer server(2);
  server.push_pull(0, 0);
  server.push(1, 0);
  const auto again = server.push_pull(0, 0);
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_THAT(floats_of(again[0].frame), ElementsAre(4, 4, 4)) << "the weight as it is now";
  EXPECT_EQ(staleness_of(again[0].frame.header), 0U) << "of the push, when it went in";
  server.push_pull(0, 1);
  EXPECT_THAT(server.push_pull(0, 0), IsEmpty()) << "its worker has gone on";
  EXPECT_THAT(server.pull(1), ElementsAre(6, 6, 6));
}

TEST(AggregatorAtOnce, AFirstPushMayHaveAnyStepAndLaterOnesFollow) {
  AsyncServer server(2);
  EXPECT_EQ(server.push(0, 57).at(0).frame.header.kind, Kind::kAck);
  EXPECT_EQ(server.push(0, 58).at(0).frame.header.kind, Kind::kAck);
  const auto refused = server.push(0, 60);
  EXPECT_EQ(refused.at(0).frame.header.kind, Kind::kError);
  EXPECT_EQ(text_of(refused.at(0).frame), "push of key 4 is for step 60 of worker 0, expected step 59");
  EXPECT_THAT(server.pull(0), ElementsAre(4, 4, 4));
}

TEST(AggregatorAtOnce, ProbeTellsMissingHeldOrTheAnswer) {
  AsyncServer server(3, "at_once staleness_bound=0");
  EXPECT_EQ(server.probe(0, 0).at(0).frame.header.kind, Kind::kMissing);
  EXPECT_THAT(server.push(0, 0), IsEmpty());
  const auto held = server.probe(0, 0);
  EXPECT_EQ(held.at(0).frame.header.kind, Kind::kHeld);
  EXPECT_THAT(ranks_of(held.at(0).frame), ElementsAre(1, 2));
  server.push(1, 0);
  EXPECT_THAT(server.push(2, 0), SizeIs(3));
  EXPECT_EQ(server.probe(0, 0).at(0).frame.header.kind, Kind::kAck);
  EXPECT_EQ(server.probe(0, 1).at(0).frame.header.kind, Kind::kMissing);
}

TEST(AggregatorAtOnce, WhoIsTooFarAheadIsAnsweredWhenTheSlowestHasCaughtUp) {
  AsyncServer server(3, "at_once staleness_bound=1");
  EXPECT_THAT(server.push_pull(0, 0), SizeIs(1));
  EXPECT_THAT(server.push_pull(0, 1), IsEmpty());
  EXPECT_THAT(server.pull(1), ElementsAre(4, 4, 4)) << "it went in all the same";
  EXPECT_THAT(server.push_pull(0, 1), IsEmpty()) << "repeated meanwhile";
  EXPECT_THAT(server.push_pull(1, 0), SizeIs(1)) << "worker 2 has not pushed yet";
  const auto answers = server.push_pull(2, 0);
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[0].worker, 0U);
  EXPECT_EQ(answers[0].frame.header.step, 1U);
  EXPECT_THAT(floats_of(answers[0].frame), ElementsAre(8, 8, 8)) << "the weight as it is then";
  EXPECT_EQ(answers[1].worker, 2U);
}

TEST(AggregatorAtOnce, NobodyWaitsForAWorkerThatHasLeft) {
  AsyncServer server(3, "at_once staleness_bound=0");
  EXPECT_THAT(server.push(0, 0), IsEmpty());
  EXPECT_THAT(server.forget(1), IsEmpty()) << "worker 2 is still awaited";
  const auto answers = server.forget(2);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, 0U);
  EXPECT_EQ(answers[0].frame.header.kind, Kind::kAck);
  EXPECT_THAT(server.push(0, 1), SizeIs(1));
}

TEST(AggregatorAtOnce, NobodyWaitsForAWorkerThatLeftBeforeTheFirstPush) {
  AsyncServer server(2, "at_once staleness_bound=0");
  server.forget(1);
  EXPECT_THAT(server.push(0, 0), SizeIs(1));
}

Answers meet(AsyncServer& server, std::uint32_t worker, std::uint64_t number) {
  Frame frame = command("meet");
  frame.header.key = number;
  return server.handle_raw(worker, std::move(frame));
}

TEST(AggregatorAtOnce, NobodyWaitsForWhoIsInACollectiveUntilAllAreThere) {
  AsyncServer server(3, "at_once staleness_bound=0");
  server.push(2, 0);
  EXPECT_THAT(server.push(0, 0), IsEmpty());
  const auto met = meet(server, 1, 1);
  ASSERT_THAT(met, SizeIs(3));  // and the pushes that waited for it alone
  EXPECT_EQ(met[0].worker, 1U);
  EXPECT_EQ(met[1].worker, 0U);
  EXPECT_EQ(met[2].worker, 2U);
  EXPECT_THAT(server.push(0, 1), IsEmpty()) << "worker 2 could push";
  EXPECT_THAT(ranks_of(server.probe(0, 1).at(0).frame), ElementsAre(2));
  EXPECT_THAT(meet(server, 2, 1), SizeIs(2));
  EXPECT_THAT(meet(server, 0, 1), SizeIs(1));  // all are there, and go on
  EXPECT_THAT(server.push(0, 2), IsEmpty());
  EXPECT_THAT(ranks_of(server.probe(0, 2).at(0).frame), ElementsAre(1, 2));
}

TEST(AggregatorAtOnce, AWorkerThatLeavesWhileItWaitsIsNotAnswered) {
  AsyncServer server(2, "at_once staleness_bound=0");
  server.push(0, 0);
  EXPECT_THAT(server.forget(0), IsEmpty());
  EXPECT_THAT(server.push(1, 0), SizeIs(1));
}

TEST(AggregatorAtOnce, CompressedPushesAreDecodedByThemselves) {
  AsyncServer server(2);
  const auto codec = compress::make(compress::parse_spec("2bit:threshold=0.5"));
  for (std::uint32_t worker = 0; worker < 2; ++worker) {
    Frame frame = request(Kind::kPush, 0, kOnes, worker);
    frame.header.codec = static_cast<std::uint8_t>(codec->wire_id());
    frame.header.codec_parameters = codec->wire_parameters();
    frame.payload = transport::Buffer::allocate(codec->max_encoded_size(kOnes.size()));
    frame.payload.truncate(codec->encode(kOnes, {}, {}, frame.payload.bytes()).bytes);
    frame.header.flags = worker == 1 ? transport::kFlagNonfinite : 0U;
    frame.header.content = static_cast<std::uint8_t>(Content::kWeight);
    const auto answers = server.handle_raw(worker, std::move(frame));
    ASSERT_THAT(answers, SizeIs(1));
    EXPECT_EQ(floats_of(answers[0].frame), Floats(3, 1.0F + static_cast<float>(worker)));
    EXPECT_EQ(answers[0].frame.header.flags, worker == 1 ? transport::kFlagNonfinite : 0U);
    EXPECT_TRUE(answers[0].frame.payload.checksum().has_value());
  }
}

TEST(AggregatorAtOnce, RefusesAPushWithoutAnOptimizer) {
  Aggregator aggregator(2);
  handle(aggregator, 0, command("rounds at_once"));
  handle(aggregator, 0, request(Kind::kInit, 0, kZeros));
  EXPECT_THAT(text_of(handle(aggregator, 0, request(Kind::kPush, 0, kOnes)).at(0).frame),
              HasSubstr("there is no optimizer that could; set one first"));
}

TEST(AggregatorAtOnce, IsChosenBeforeTheFirstPushAndNotWhereSumsGoUpstream) {
  Aggregator begun(1);
  handle(begun, 0, request(Kind::kPush, 0, kOnes));
  EXPECT_THAT(text_of(handle(begun, 0, command("rounds at_once")).at(0).frame),
              HasSubstr("rounds given after the first push"));
  Aggregator passing(1);
  passing.set_upstream([](const Frame&) {});
  EXPECT_THAT(text_of(handle(passing, 0, command("rounds at_once")).at(0).frame), HasSubstr("upstream"));
  EXPECT_THAT(text_of(handle(passing, 0, command("rounds later")).at(0).frame),
              HasSubstr("rounds 'later' are not known"));
}

TEST(AggregatorAtOnce, ALateInitUndoesNoPush) {
  AsyncServer server(1);
  server.push(0, 0);
  server.handle_raw(0, request(Kind::kInit, 0, kZeros));
  EXPECT_THAT(server.pull(0), ElementsAre(2, 2, 2));
}

}  // namespace
}  // namespace gradwire::kvstore
