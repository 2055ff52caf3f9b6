#include "kvstore/rows/row_aggregator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "compress/codecs.h"
#include "tests/kvstore/rows/row_requests.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using transport::Frame;
using transport::Kind;

class TwoWorkersRows : public testing::Test {
 protected:
  Answers send(std::uint32_t worker, Frame frame) { return kvstore::send(rows_, worker, std::move(frame)); }
  Answers push(std::uint32_t worker, std::uint64_t step, const Ids& ids, const Values& values) {
    return send(worker, rows_frame(Kind::kRowPush, step, ids, values));
  }
  Answers pull(std::uint32_t worker, std::uint64_t step, const Ids& ids) {
    return send(worker, rows_frame(Kind::kRowPull, step, ids, {}));
  }
  void optimize(const std::string& text) { heed(rows_, "optimizer " + text); }

  RowAggregator rows_{2};
};

TEST_F(TwoWorkersRows, TheSumIsOfTheUnionOfTheRows) {
  expect_only(push(1, 0, {3, 5}, {10, 20, 30, 40}), Kind::kRowAck);
  EXPECT_THAT(send(1, everything(1)), IsEmpty());
  const auto answers = push(0, 0, {5, 9}, {1, 2, 3, 4});
  ASSERT_THAT(answers, SizeIs(2));  // and worker 1's pull
  EXPECT_EQ(answers[1].worker, 1U);
  EXPECT_EQ(answers[1].frame.header.offset, everything(1).header.offset);
  EXPECT_EQ(rows_in(answers[1].frame), std::pair(Ids({3, 5, 9}), Values({10, 20, 31, 42, 3, 4})));
  expect_rows(send(0, everything(1)), {3, 5, 9}, {10, 20, 31, 42, 3, 4});
}

TEST_F(TwoWorkersRows, RowsAreAddedInTheOrderOfRanks) {
  RowAggregator three(3);
  Answers answers;
  const float given[] = {1, 1e8F, -1e8F};
  for (const std::uint32_t rank : {2U, 1U, 0U})
    three.handle(rank, rows_frame(Kind::kRowPush, 0, {7}, {given[rank], 0}), answers);
  answers.clear();
  three.handle(0, everything(1), answers);
  expect_rows(answers, {7}, {0, 0});  // (1 + 1e8) - 1e8 in float32
}

TEST_F(TwoWorkersRows, ThoseAskedForComeAndOthersAreZero) {
  push(0, 0, {3, 5}, {1, 2, 3, 4});
  push(1, 0, {}, {});
  expect_rows(pull(0, 1, {2, 5, 19}), {5}, {3, 4});
  expect_rows(pull(1, 1, {}), {}, {});
}

TEST_F(TwoWorkersRows, ARoundHoldsItsOwnRowsOnly) {
  for (const std::uint32_t rank : {0U, 1U}) push(rank, 0, {3}, {1, 1});
  for (const std::uint32_t rank : {0U, 1U}) push(rank, 1, {4}, {1, 1});
  expect_rows(send(0, everything(2)), {4}, {2, 2});
}

TEST_F(TwoWorkersRows, RepeatedRequestsChangeNothing) {
  for (int i = 0; i < 3; ++i) expect_only(push(0, 0, {3}, {1, 1}), Kind::kRowAck);
  push(1, 0, {3}, {1, 1});
  expect_only(push(1, 0, {3}, {1, 1}), Kind::kRowAck);
  for (int i = 0; i < 2; ++i) expect_rows(pull(0, 1, {3}), {3}, {2, 2});
  push(0, 1, {3}, {1, 1});
  push(1, 1, {3}, {1, 1});
  EXPECT_THAT(pull(0, 1, {3}), IsEmpty());  // it has gone on since
}

TEST_F(TwoWorkersRows, WhoAsksAgainHearsWhoIsAwaited) {
  push(0, 0, {3}, {1, 1});
  EXPECT_THAT(pull(0, 1, {3}), IsEmpty());
  const auto answers = pull(0, 1, {3});
  expect_only(answers, Kind::kRowHeld);
  std::uint32_t rank = 99;
  ASSERT_EQ(answers[0].frame.payload.size_bytes(), sizeof rank);
  std::memcpy(&rank, answers[0].frame.payload.bytes().data(), sizeof rank);
  EXPECT_EQ(rank, 1U);
}

TEST_F(TwoWorkersRows, FirstValuesCanBePulledUntilTheFirstRound) {
  expect_only(send(0, rows_frame(Kind::kRowInit, 0, {1, 2}, {1, 2, 3, 4})), Kind::kRowAck);
  expect_rows(pull(1, 0, {2, 3}), {2}, {3, 4});
  for (const std::uint32_t rank : {0U, 1U}) push(rank, 0, {3}, {1, 1});
  send(0, rows_frame(Kind::kRowInit, 0, {1}, {9, 9}));  // repeated: it must not undo the round
  expect_rows(pull(1, 1, {1, 2, 3}), {3}, {2, 2});
}

TEST_F(TwoWorkersRows, FirstValuesThatComeLateUndoNoLaterOnes) {
  const auto init = [this](std::uint64_t number, const Ids& ids, const Values& values) {
    Frame frame = rows_frame(Kind::kRowInit, 0, ids, values);
    frame.header.offset = number;
    expect_only(send(0, std::move(frame)), Kind::kRowAck);
  };
  init(2, {5}, {5, 5});  // of one init, in two pieces, the second first
  init(1, {3}, {3, 3});
  init(3, {3, 5}, {6, 6, 7, 7});
  init(2, {5}, {5, 5});
  init(1, {3}, {3, 3});
  expect_rows(pull(1, 0, {3, 5}), {3, 5}, {6, 6, 7, 7});
}

TEST_F(TwoWorkersRows, AnOptimizerUpdatesTheRowsOfTheRoundAndNoOthers) {
  optimize("sgd learning_rate=0.5 wd=0.5");
  send(0, rows_frame(Kind::kRowInit, 0, {1, 2}, {8, 8, 4, 4}));
  push(0, 0, {2}, {1, 2});
  push(1, 0, {6}, {2, 4});
  const auto answers = send(0, everything(1));
  expect_rows(answers, {2, 6}, {4 - 0.5F * (1 + 2), 4 - 0.5F * (2 + 2), -1, -2});
  EXPECT_EQ(answers[0].frame.header.content, static_cast<std::uint8_t>(Content::kWeight));
  expect_rows(pull(1, 1, {1, 2, 3}), {1, 2}, {8, 8, 2.5F, 2});  // no decay of row 1
}

TEST_F(TwoWorkersRows, MomentumOfRowsThatAreNotPushedStandsStill) {
  optimize("sgd learning_rate=1 momentum=0.5");
  send(0, rows_frame(Kind::kRowInit, 0, {}, {}));
  const auto both = [this](std::uint64_t step, std::uint64_t id, float value) {
    for (const std::uint32_t rank : {0U, 1U}) push(rank, step, {id}, {value, value});
  };
  both(0, 1, 1);  // m = -2, w = -2
  both(1, 5, 1);
  both(2, 1, 0);  // m = -1, w = -3: halved once, for its own round
  expect_rows(pull(0, 3, {1}), {1}, {-3, -3});
}

// As torch.optim.SparseAdam: corrections go by the rounds of the table.
TEST_F(TwoWorkersRows, AnOptimizersStepsAreTheTables) {
  optimize("adam learning_rate=1");
  send(0, rows_frame(Kind::kRowInit, 0, {}, {}));
  for (const std::uint64_t step : {0U, 1U}) {
    for (const std::uint32_t rank : {0U, 1U}) push(rank, step, {step}, {1, 1});
  }
  const auto [ids, values] = rows_in(pull(0, 2, {0, 1})[0].frame);
  ASSERT_THAT(ids, ElementsAre(0, 1));
  EXPECT_NEAR(values[0], -1, 1e-5);
  // In round 2: (0.1 g / (1 - 0.9^2)) / (sqrt(0.001 g^2) / sqrt(1 - 0.999^2))
  EXPECT_NEAR(values[2], -(0.1 / 0.19) / std::sqrt(0.001 / (1 - 0.999 * 0.999)), 1e-4);
}

TEST_F(TwoWorkersRows, AnotherOptimizerBeginsAnew) {
  optimize("sgd learning_rate=1 momentum=0.5");
  send(0, rows_frame(Kind::kRowInit, 0, {}, {}));
  for (const std::uint32_t rank : {0U, 1U}) push(rank, 0, {1}, {1, 1});
  optimize("sgd learning_rate=0.5 momentum=0.5");  // the same one keeps its momentum, of which that is half
  for (const std::uint32_t rank : {0U, 1U}) push(rank, 1, {1}, {1, 1});
  expect_rows(pull(0, 2, {1}), {1}, {-3.5F, -3.5F});
  optimize("test");
  for (const std::uint32_t rank : {0U, 1U}) push(rank, 2, {1}, {1, 1});
  expect_rows(pull(0, 3, {1}), {1}, {-1.5F, -1.5F});
}

TEST_F(TwoWorkersRows, PullsOfATableThatNobodyKnowsAreRefusedAndMakeNone) {
  expect_refused(pull(0, 0, {3}), "nobody has initialised it or pushed to it");
  expect_refused(send(0, everything(0)), "nobody has initialised it or pushed to it");
  push(1, 0, {3}, {1, 2});
  expect_refused(pull(0, 0, {3}), "no round of it is complete here");
  constexpr RowShape kOther{7, 2};
  expect_refused(send(0, rows_frame(Kind::kRowPull, 0, {3}, {}, kOther)),
                 "20 rows of 2 elements here, 7 of 2");
  RowAggregator unknown(1);
  Answers answers;
  unknown.handle(0, rows_frame(Kind::kRowPull, 0, {3}, {}, kOther), answers);
  unknown.handle(0, rows_frame(Kind::kRowInit, 0, {3}, {1, 2}), answers);
  EXPECT_EQ(answers.back().frame.header.kind, Kind::kRowAck) << "of the shape that its owner says";
}

// The question has overtaken the push, which was lost.
TEST_F(TwoWorkersRows, APullAfterAPushThatIsNotHereIsHeld) {
  expect_only(pull(0, 1, {3}), Kind::kRowHeld);
  for (const std::uint32_t rank : {0U, 1U}) push(rank, 0, {3}, {1, 1});
  expect_rows(pull(0, 1, {3}), {3}, {2, 2});
}

TEST_F(TwoWorkersRows, AnOptimizerThatComesLaterBeginsWithTheLastSums) {
  send(0, rows_frame(Kind::kRowInit, 0, {1, 2}, {8, 8, 8, 8}));
  for (const std::uint32_t rank : {0U, 1U}) push(rank, 0, {rank, 2}, {1, 2, 3, 4});
  expect_rows(pull(0, 1, {0, 1, 2}), {0, 1, 2}, {1, 2, 1, 2, 6, 8});
  optimize("test rescale_grad=0.5");
  expect_rows(pull(0, 1, {0, 1, 2}), {0, 1, 2}, {1, 2, 1, 2, 6, 8});
  for (const std::uint32_t rank : {0U, 1U}) expect_only(push(rank, 1, {2, 5}, {1, 1, 1, 1}), Kind::kRowAck);
  expect_rows(pull(0, 2, {0, 2, 5}), {0, 2, 5}, {1, 2, 7, 9, 1, 1});
}

TEST_F(TwoWorkersRows, PushesBeforeThereAreWeightsAreRefused) {
  optimize("sgd learning_rate=1");
  expect_refused(push(0, 0, {1}, {1, 1}), "init the table first");
}

TEST_F(TwoWorkersRows, PayloadsThatDoNotFitAreRefusedByName) {
  push(0, 0, {3}, {1, 1});
  expect_refused(send(1, rows_frame(Kind::kRowPush, 0, {3}, {1, 1}, {21, 2})),
                 "table 4 has 20 rows of 2 elements here, 21 of 2 given");
  expect_refused(push(1, 0, {3}, {1, 1, 1}), "12 bytes given, expected 1 rows of 8 bytes");
  Frame wrong = rows_frame(Kind::kRowPush, 0, {3}, {1, 1});
  wrong.header.count = 2;
  expect_refused(send(1, std::move(wrong)), "expected those of 2 rows");
  Frame fp16 = rows_frame(Kind::kRowPush, 0, {3}, {1});
  fp16.header.codec = 1;
  expect_refused(send(1, std::move(fp16)), "give every rank the same compression");
  Frame unknown = rows_frame(Kind::kRowPush, 0, {3}, {1, 1});
  unknown.header.codec = 200;
  expect_refused(send(1, std::move(unknown)), "codec id 200 is unknown");
  Frame exact = rows_frame(Kind::kRowPush, 0, {3}, {1, 1});
  exact.header.reply = 1;
  expect_refused(send(1, std::move(exact)), "has no reply kind 1");
  Frame agreed = rows_frame(Kind::kRowPush, 0, {3}, {1, 1});
  const auto codec = compress::make(compress::parse_spec("2bit:threshold=auto"));
  agreed.header.codec = static_cast<std::uint8_t>(codec->wire_id());
  agreed.header.codec_parameters = codec->wire_parameters();
  expect_refused(send(1, std::move(agreed)), "agrees scales from round to round");
  expect_refused(push(2, 0, {3}, {1, 1}), "worker 2 is not one of 2");
  EXPECT_THAT(push(1, 0, {3}, {1, 1}), SizeIs(1));  // and all that has changed nothing
  expect_rows(pull(0, 1, {3}), {3}, {2, 2});
}

TEST_F(TwoWorkersRows, WhoIsFarAheadIsHeldAndNothingIsKeptOfIt) {
  expect_only(push(1, 64, {3}, {1, 1}), Kind::kRowHeld);
  for (std::uint32_t worker = 0; worker < 2; ++worker)
    expect_only(push(worker, 0, {3}, {1, 1}), Kind::kRowAck);
  expect_only(push(1, 64, {3}, {1, 1}), Kind::kRowAck);
}

TEST_F(TwoWorkersRows, WhatArrivesDamagedIsAskedForAgain) {
  Frame frame = rows_frame(Kind::kRowPush, 0, {3}, {1, 1});
  frame.payload.seal();
  frame.payload.bytes().back() ^= std::byte{1};
  expect_only(send(0, std::move(frame)), Kind::kRowMissing);
}

TEST_F(TwoWorkersRows, WhoWaitsForAWorkerThatLeftIsTold) {
  push(0, 0, {3}, {1, 1});
  pull(0, 1, {3});
  Answers answers;
  rows_.forget_worker(1, answers);
  expect_refused(answers, "worker 1 left the job before step 0 of table 4");
  expect_refused(pull(0, 1, {3}), "worker 1 left the job");
}

TEST_F(TwoWorkersRows, AWorkerThatHasPushedMayLeave) {
  push(1, 0, {3}, {1, 1});
  push(0, 0, {3}, {1, 1});
  Answers answers;
  rows_.forget_worker(1, answers);
  EXPECT_THAT(answers, IsEmpty());
  expect_rows(pull(0, 1, {3}), {3}, {2, 2});
}

// Frames of any bytes are answered, and no round is lost for it.
TEST_F(TwoWorkersRows, HostileFramesAreRefused) {
  const char* const text = std::getenv("GRADWIRE_FUZZ_ROUNDS");
  const int fuzz_rounds = text == nullptr ? 2000 : 10 * std::atoi(text);
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < fuzz_rounds; ++round) {
    const Kind kinds[] = {Kind::kRowInit, Kind::kRowPush, Kind::kRowPull};
    Frame frame = rows_frame(kinds[random() % 3], random() % 3, {3, 9}, {1, 2, 3, 4});
    for (std::size_t edits = 1 + random() % 4; edits > 0; --edits)
      frame.payload.bytes()[random() % frame.payload.size_bytes()] = static_cast<std::byte>(random() & 0xff);
    frame.header.key = 5 + random() % 3;
    frame.header.codec = static_cast<std::uint8_t>(random() % 2 == 0 ? 0 : random() % 16);
    frame.header.count = random() % 4 == 0 ? random() : 2;
    for (const auto& answer : send(random() % 2, std::move(frame)))
      refused += answer.frame.header.kind == Kind::kError ? 1 : 0;
  }
  EXPECT_GT(refused, fuzz_rounds / 4);
  for (const std::uint32_t rank : {0U, 1U}) push(rank, 0, {3}, {1, 1});
  expect_rows(pull(0, 1, {3}), {3}, {2, 2});
}

}  // namespace
}  // namespace gradwire::kvstore
