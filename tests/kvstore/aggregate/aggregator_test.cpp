#include "kvstore/aggregate/aggregator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "compress/codecs.h"
#include "kvstore/aggregate/partition_state.h"
#include "kvstore/wire/lossless_frames.h"
#include "tests/kvstore/requests.h"

namespace gradwire::kvstore {
namespace {

using compress::ReplyKind;
using testing::HasSubstr;
using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

const std::vector<float> kOnes = {1, 1, 1};
const std::vector<float> kTwos = {2, 2, 2};

TEST(Aggregator, AnswersAllWhenTheLastPushArrives) {
  Aggregator aggregator(2);
  EXPECT_TRUE(handle(aggregator, 1, request(Kind::kPush, 0, kTwos, 1)).empty());
  const auto answers = handle(aggregator, 0, request(Kind::kPush, 0, kOnes));
  ASSERT_EQ(answers.size(), 2U);
  for (const auto& answer : answers) {
    EXPECT_EQ(answer.frame.header.kind, Kind::kReply);
    EXPECT_EQ(floats_of(answer.frame), (std::vector<float>{3, 3, 3}));
  }
  EXPECT_EQ(answers[0].worker, 0U);
  EXPECT_EQ(answers[1].worker, 1U);
}

TEST(Aggregator, SumsInRankOrderWhateverTheOrderOfArrival) {
  const std::vector<float> big = {1e8F}, small = {1.0F}, minus = {-1e8F};
  for (const auto& order : std::vector<std::vector<std::uint32_t>>{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
    Aggregator aggregator(3);
    const std::vector<float>* by_rank[] = {&big, &minus, &small};
    Answers answers;
    for (const auto rank : order)
      answers = handle(aggregator, rank, request(Kind::kPush, 0, *by_rank[rank], rank));
    EXPECT_EQ(floats_of(answers.at(0).frame), std::vector<float>{1.0F});
  }
}

TEST(Aggregator, RepeatedPushCountsOnceAndARepeatAfterTheAnswerGetsItAgain) {
  Aggregator aggregator(2);
  handle(aggregator, 0, request(Kind::kPush, 0, kOnes));
  EXPECT_TRUE(handle(aggregator, 0, request(Kind::kPush, 0, kOnes)).empty());
  handle(aggregator, 1, request(Kind::kPush, 0, kTwos, 1));
  const auto again = handle(aggregator, 0, request(Kind::kPush, 0, kOnes));
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(floats_of(again[0].frame), (std::vector<float>{3, 3, 3}));
}

TEST(Aggregator, AFastWorkerMayBeAheadAndRoundsCompleteInOrder) {
  Aggregator aggregator(2);
  handle(aggregator, 0, request(Kind::kPush, 0, kOnes));
  handle(aggregator, 0, request(Kind::kPush, 1, kTwos));
  EXPECT_EQ(floats_of(handle(aggregator, 1, request(Kind::kPush, 0, kOnes, 1)).at(0).frame),
            (std::vector<float>{2, 2, 2}));
  EXPECT_EQ(floats_of(handle(aggregator, 1, request(Kind::kPush, 1, kOnes, 1)).at(0).frame),
            (std::vector<float>{3, 3, 3}));
  const auto far = handle(aggregator, 0, request(Kind::kPush, 500, kOnes));
  EXPECT_EQ(far.at(0).frame.header.kind, Kind::kError);
}

TEST(Aggregator, ProbeTellsHeldMissingOrTheAnswer) {
  Aggregator aggregator(3);
  const auto probe = [&](std::uint32_t worker) {
    Frame frame = request(Kind::kProbe, 0, kOnes);
    frame.payload = {};
    return handle(aggregator, worker, std::move(frame)).at(0).frame.header.kind;
  };
  EXPECT_EQ(probe(0), Kind::kMissing);
  handle(aggregator, 0, request(Kind::kPush, 0, kOnes));
  EXPECT_EQ(probe(0), Kind::kHeld);
  EXPECT_EQ(probe(1), Kind::kMissing);
  handle(aggregator, 1, request(Kind::kPush, 0, kOnes, 1));
  handle(aggregator, 2, request(Kind::kPush, 0, kOnes, 2));
  EXPECT_EQ(probe(1), Kind::kReply);
}

TEST(Aggregator, RefusesWhatDiffersAndTheRoundGoesOn) {
  Aggregator aggregator(2);
  handle(aggregator, 0, request(Kind::kPush, 0, kOnes));
  const std::vector<float> longer = {1, 2, 3, 4};
  auto refused = handle(aggregator, 1, request(Kind::kPush, 0, longer, 1));
  EXPECT_THAT(text_of(refused.at(0).frame), HasSubstr("4 elements given, 3 expected"));
  Frame other = request(Kind::kPush, 0, kOnes, 1);
  other.header.reply = static_cast<std::uint8_t>(ReplyKind::kSame);
  refused = handle(aggregator, 1, std::move(other));
  EXPECT_THAT(text_of(refused.at(0).frame), HasSubstr("give every rank the same compression"));
  Frame cut = request(Kind::kPush, 0, kOnes, 1);
  cut.payload.truncate(5);
  refused = handle(aggregator, 1, std::move(cut));
  EXPECT_EQ(refused.at(0).frame.header.content, static_cast<std::uint8_t>(Refusal::kSendAgain));
  Frame exact = request(Kind::kPush, 0, kOnes, 1);
  exact.header.reply = static_cast<std::uint8_t>(ReplyKind::kExact);
  EXPECT_EQ(handle(aggregator, 1, std::move(exact)).at(0).frame.header.kind, Kind::kError);
  Frame unknown = request(Kind::kPush, 0, kOnes, 1);
  unknown.header.codec = 200;
  EXPECT_EQ(handle(aggregator, 1, std::move(unknown)).at(0).frame.header.kind, Kind::kError);
  EXPECT_EQ(floats_of(handle(aggregator, 1, request(Kind::kPush, 0, kTwos, 1)).at(0).frame),
            (std::vector<float>{3, 3, 3}));
}

TEST(Aggregator, ADamagedPayloadIsToBeSentAgainAndTheRoundGoesOn) {
  Aggregator aggregator(2);
  handle(aggregator, 0, request(Kind::kPush, 0, kOnes));
  Frame damaged = request(Kind::kPush, 0, kTwos, 1);
  damaged.payload.seal();
  damaged.payload.bytes()[5] ^= std::byte{1};
  const auto refused = handle(aggregator, 1, std::move(damaged));
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].worker, 1U);
  EXPECT_EQ(refused[0].frame.header.kind, Kind::kError);
  EXPECT_EQ(refused[0].frame.header.content, static_cast<std::uint8_t>(Refusal::kSendAgain));
  EXPECT_THAT(text_of(refused[0].frame), HasSubstr("key 4 offset 0: the payload arrived damaged"));
  Frame whole = request(Kind::kPush, 0, kTwos, 1);
  whole.payload.seal();
  EXPECT_EQ(floats_of(handle(aggregator, 1, std::move(whole)).at(0).frame), (std::vector<float>{3, 3, 3}));
}

Frame two_bit_push() {
  compress::CodecSpec spec;
  spec.name = "2bit";
  const auto codec = compress::make(spec);
  Frame frame = request(Kind::kPush, 0, kOnes);
  frame.header.codec = static_cast<std::uint8_t>(codec->wire_id());
  frame.header.codec_parameters = codec->wire_parameters();
  frame.header.reply = static_cast<std::uint8_t>(ReplyKind::kExact);
  frame.payload = Buffer::allocate(codec->max_encoded_size(kOnes.size()));
  frame.payload.truncate(codec->encode(kOnes, {}, {}, frame.payload.bytes()).bytes);
  return frame;
}

TEST(Aggregator, RepliesOfALossyCodecAreSealedAndAllWhereAsked) {
  using Sealing = Aggregator::Sealing;
  const auto is_sealed = [](Sealing sealing, Frame push) {
    Aggregator aggregator(1, sealing);
    const auto answers = handle(aggregator, 0, std::move(push));
    EXPECT_EQ(answers.at(0).frame.header.kind, Kind::kReply);
    EXPECT_TRUE(answers.at(0).frame.payload.is_intact());
    return answers.at(0).frame.payload.checksum().has_value();
  };
  EXPECT_FALSE(is_sealed(Sealing::kLossy, request(Kind::kPush, 0, kOnes)));
  EXPECT_TRUE(is_sealed(Sealing::kLossy, two_bit_push()));
  EXPECT_TRUE(is_sealed(Sealing::kAll, request(Kind::kPush, 0, kOnes)));
}

/// Of a hundred thousand elements, almost all of them 0.
Frame sparse_push(std::uint32_t sender, ReplyKind reply, bool is_shortened) {
  std::vector<float> values(100'000), residual(values.size());
  values[7] = 1;
  const auto codec = compress::make(compress::parse_spec("2bit:threshold=0.5"));
  Frame frame = request(Kind::kPush, 0, values, sender);
  frame.header.codec = static_cast<std::uint8_t>(codec->wire_id());
  frame.header.codec_parameters = codec->wire_parameters();
  frame.header.reply = static_cast<std::uint8_t>(reply);
  frame.payload = Buffer::allocate(codec->max_encoded_size(values.size()));
  frame.payload.truncate(codec->encode(values, residual, {}, frame.payload.bytes()).bytes);
  transport::BufferPool pool;
  if (is_shortened) shorten(*codec, values.size(), frame.payload, frame.header.flags, pool);
  return frame;
}

TEST(Aggregator, RepliesAreShortenedForWorkersWhosePushesWere) {
  const auto is_shortened = [](const Answers& answers) {
    return (answers.at(1).frame.header.flags & transport::kFlagLossless) != 0;
  };
  const auto push = [](Aggregator& aggregator, std::uint32_t worker, bool shortened,
                       ReplyKind reply = ReplyKind::kSame) {
    return handle(aggregator, worker, sparse_push(worker, reply, shortened));
  };
  Aggregator plain(2), one(2), refused(2);
  push(plain, 0, false);
  EXPECT_FALSE(is_shortened(push(plain, 1, false)));
  push(one, 0, false);
  EXPECT_TRUE(is_shortened(push(one, 1, true)));
  // A push that is refused says nothing of the round.
  push(refused, 0, false);
  EXPECT_EQ(push(refused, 1, true, ReplyKind::kFp32).at(0).frame.header.kind, Kind::kError);
  EXPECT_FALSE(is_shortened(push(refused, 1, false)));
}

TEST(Aggregator, PullGetsTheFirstValueThenTheSum) {
  Aggregator aggregator(1);
  Frame pull = request(Kind::kPull, 0, kOnes);
  EXPECT_EQ(handle(aggregator, 0, request(Kind::kPull, 0, kOnes)).at(0).frame.header.kind, Kind::kError);
  EXPECT_EQ(handle(aggregator, 0, request(Kind::kInit, 0, kTwos)).at(0).frame.header.kind, Kind::kAck);
  EXPECT_EQ(floats_of(handle(aggregator, 0, std::move(pull)).at(0).frame), kTwos);
  handle(aggregator, 0, request(Kind::kPush, 0, kOnes));
  EXPECT_EQ(floats_of(handle(aggregator, 0, request(Kind::kPull, 0, kOnes)).at(0).frame), kOnes);
  handle(aggregator, 0, request(Kind::kInit, 0, kTwos));  // a late repeat undoes nothing
  EXPECT_EQ(floats_of(handle(aggregator, 0, request(Kind::kPull, 0, kOnes)).at(0).frame), kOnes);
}

/// Whose double was taken, and who goes on when that is acknowledged.
TEST(Aggregator, AFirstValueThatComesLateUndoesNothingThatCameAfterIt) {
  Aggregator aggregator(2);
  const auto value = [&] {
    return floats_of(handle(aggregator, 0, request(Kind::kPull, kNoStep - 100, kOnes)).at(0).frame);
  };
  const auto give = [&](Kind kind, std::uint32_t worker, std::uint64_t step,
                        const std::vector<float>& values) {
    Frame frame = request(kind, step, values, worker);
    if (kind == Kind::kWriteState) frame.payload = encode_state({0, values, {}, {}});
    EXPECT_EQ(handle(aggregator, worker, std::move(frame)).at(0).frame.header.kind, Kind::kAck);
  };
  const std::vector<float> threes(kOnes.size(), 3.0F), fours(kOnes.size(), 4.0F);
  give(Kind::kInit, 0, kNoStep - 1, kOnes);
  give(Kind::kInit, 1, kNoStep - 1, kTwos);
  give(Kind::kInit, 0, kNoStep - 1, kOnes);
  EXPECT_EQ(value(), kTwos);
  give(Kind::kWriteState, 0, kNoStep - 2, threes);
  give(Kind::kInit, 0, kNoStep - 1, kOnes);
  give(Kind::kInit, 1, kNoStep - 1, kTwos);
  EXPECT_EQ(value(), threes);
  give(Kind::kWriteState, 0, kNoStep - 3, fours);
  give(Kind::kWriteState, 0, kNoStep - 2, threes);
  EXPECT_EQ(value(), fours);
}

TEST(Aggregator, OptimizerUpdatesTheWeight) {
  Aggregator aggregator(2);
  EXPECT_EQ(handle(aggregator, 0, command("optimizer test rescale_grad=2")).at(0).frame.header.kind,
            Kind::kAck);
  EXPECT_THAT(text_of(handle(aggregator, 0, request(Kind::kPush, 0, kOnes)).at(0).frame),
              HasSubstr("init the key first"));
  handle(aggregator, 0, request(Kind::kInit, 0, kOnes));
  handle(aggregator, 0, request(Kind::kPush, 0, kOnes));
  const auto answers = handle(aggregator, 1, request(Kind::kPush, 0, kTwos, 1));
  EXPECT_EQ(answers.at(0).frame.header.kind, Kind::kValue);
  EXPECT_EQ(floats_of(answers.at(0).frame), (std::vector<float>{7, 7, 7}));
}

TEST(Aggregator, AWorkerThatLeftFailsThoseWhoWaitForIt) {
  Aggregator aggregator(3);
  handle(aggregator, 0, request(Kind::kPush, 0, kOnes));
  Answers answers;
  aggregator.forget_worker(2, answers);
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].worker, 0U);
  EXPECT_THAT(text_of(answers[0].frame), HasSubstr("worker 2 left the job before step 0 of key 4"));
  answers = handle(aggregator, 1, request(Kind::kPush, 0, kOnes, 1));
  ASSERT_EQ(answers.size(), 2U);
}

// What was said of it may have been lost on the way, or with a server whose mirror serves now.
TEST(Aggregator, WhoAsksForAWorkerThatHasLeftIsToldSoAgain) {
  Aggregator aggregator(3);
  handle(aggregator, 0, request(Kind::kPush, 0, kOnes));
  Answers lost;
  aggregator.forget_worker(2, lost);
  const auto answers = handle(aggregator, 0, request(Kind::kProbe, 0, {}));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].frame.header.kind, Kind::kError);
  EXPECT_THAT(text_of(answers[0].frame), HasSubstr("worker 2 left the job before step 0 of key 4"));
}

TEST(Aggregator, AWorkerThatLeftAfterItsPushIsNotMissed) {
  Aggregator aggregator(2);
  handle(aggregator, 1, request(Kind::kPush, 0, kTwos, 1));
  Answers answers;
  aggregator.forget_worker(1, answers);
  EXPECT_TRUE(answers.empty());
  EXPECT_EQ(floats_of(handle(aggregator, 0, request(Kind::kPush, 0, kOnes)).at(0).frame),
            (std::vector<float>{3, 3, 3}));
}

TEST(Aggregator, NonfiniteFlagReachesAll) {
  Aggregator aggregator(2);
  Frame flagged = request(Kind::kPush, 0, kOnes);
  flagged.header.flags = transport::kFlagNonfinite;
  handle(aggregator, 0, std::move(flagged));
  const auto answers = handle(aggregator, 1, request(Kind::kPush, 0, kOnes, 1));
  EXPECT_EQ(answers.at(1).frame.header.flags & transport::kFlagNonfinite, transport::kFlagNonfinite);
}

TEST(Aggregator, ResidualOfTheReplyStaysBoundedOverTenThousandConstantRounds) {
  const auto codec = compress::make(compress::parse_spec("2bit:threshold=0.5"));
  const std::vector<float> grad(64, 0.37F);
  Aggregator aggregator(4);
  std::vector<std::vector<float>> residuals(4, std::vector<float>(grad.size(), 0.0F));
  double pulled = 0;
  constexpr int kRounds = 10'000;
  for (int step = 0; step < kRounds; ++step) {
    Answers answers;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      Frame frame;
      frame.header.kind = Kind::kPush;
      frame.header.sender = {transport::Role::kWorker, rank};
      frame.header.codec = static_cast<std::uint8_t>(codec->wire_id());
      frame.header.codec_parameters = codec->wire_parameters();
      frame.header.reply = static_cast<std::uint8_t>(ReplyKind::kSame);
      frame.header.step = static_cast<std::uint64_t>(step);
      frame.header.count = grad.size();
      frame.payload = Buffer::allocate(codec->max_encoded_size(grad.size()));
      frame.payload.truncate(codec->encode(grad, residuals[rank], {}, frame.payload.bytes()).bytes);
      aggregator.handle(rank, std::move(frame), answers);
    }
    std::vector<float> sum(grad.size());
    codec->decode_reply(answers.at(0).frame.payload.bytes(), 4, ReplyKind::kSame, sum, {});
    pulled += sum[0];
  }
  // What was not pulled yet sits in residuals: at most one threshold a worker and half a level at the server.
  EXPECT_NEAR(pulled, 4.0 * 0.37 * kRounds, 4 * 0.5 + 4 * 0.5);
}

TEST(Aggregator, WaitsForItsContributorsAlone) {
  Aggregator aggregator(4);
  EXPECT_EQ(handle(aggregator, 0, command("contributors 1,3")).at(0).frame.header.kind, Kind::kAck);

  EXPECT_THAT(text_of(handle(aggregator, 0, request(Kind::kPush, 0, kOnes)).at(0).frame),
              HasSubstr("worker 0 is not awaited here, but worker 1, 3"));
  handle(aggregator, 3, request(Kind::kPush, 0, kTwos, 3));
  const auto held = handle(aggregator, 3, request(Kind::kProbe, 0, {}, 3));
  std::uint32_t awaited = 0;
  ASSERT_EQ(held.at(0).frame.payload.size_bytes(), sizeof(awaited));
  std::memcpy(&awaited, held[0].frame.payload.bytes().data(), sizeof(awaited));
  EXPECT_EQ(awaited, 1U);
  Answers answers;
  aggregator.forget_worker(0, answers);  // nobody needs it
  EXPECT_TRUE(answers.empty());
  answers = handle(aggregator, 1, request(Kind::kPush, 0, kOnes, 1));
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0].worker, 1U);
  EXPECT_EQ(answers[1].worker, 3U);
  EXPECT_EQ(floats_of(answers[1].frame), (std::vector<float>{3, 3, 3}));
}

TEST(Aggregator, RefusesContributorsThatAreNoneOrComeTooLate) {
  Aggregator aggregator(4);
  for (const std::vector<std::uint32_t>& bad :
       std::vector<std::vector<std::uint32_t>>{{}, {4}, {1, 1}, {2, 0}})
    EXPECT_THROW(aggregator.set_contributors(bad), std::invalid_argument);
  handle(aggregator, 0, request(Kind::kPush, 0, kOnes));
  EXPECT_THROW(aggregator.set_contributors({0}), std::invalid_argument);
}

TEST(Aggregator, GivesASumUpstreamOnceAndAnswersWithWhatComesBack) {
  Aggregator aggregator(2);
  std::vector<Frame> sums;
  aggregator.set_upstream([&](Frame sum) { sums.push_back(std::move(sum)); });
  handle(aggregator, 0, request(Kind::kPush, 0, kOnes));
  EXPECT_TRUE(handle(aggregator, 1, request(Kind::kPush, 0, kTwos, 1)).empty());
  ASSERT_EQ(sums.size(), 1U);
  EXPECT_EQ(floats_of(sums[0]), (std::vector<float>{3, 3, 3}));

  EXPECT_TRUE(handle(aggregator, 0, request(Kind::kPush, 0, kOnes)).empty());  // repeated meanwhile
  EXPECT_EQ(sums.size(), 1U);
  const auto held = handle(aggregator, 0, request(Kind::kProbe, 0, {}));
  EXPECT_EQ(held.at(0).frame.header.kind, Kind::kHeld);
  EXPECT_EQ(held[0].frame.payload.size_bytes(), 0U);

  sums[0].payload = bytes_of(std::vector<float>{9, 9, 9});
  Answers answers;
  aggregator.answer({sums[0].header, sums[0].payload.share()}, answers);
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[1].frame.header.kind, Kind::kReply);
  EXPECT_EQ(floats_of(answers[1].frame), (std::vector<float>{9, 9, 9}));
  answers.clear();
  aggregator.answer({sums[0].header, sums[0].payload.share()}, answers);  // only once
  EXPECT_TRUE(answers.empty());
  EXPECT_EQ(floats_of(handle(aggregator, 0, request(Kind::kPush, 0, kOnes)).at(0).frame),
            (std::vector<float>{9, 9, 9}));
}

}  // namespace
}  // namespace gradwire::kvstore
