// RowAggregator where every push is a round of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvstore/rows/row_state.h"
#include "kvstore/wire/answer.h"
#include "tests/kvstore/rows/row_requests.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using transport::Frame;
using transport::Kind;

/// Of this many workers, whose table begins at zeros and has pushes added to it, times 2.
class AsyncRows {
 public:
  explicit AsyncRows(std::uint32_t workers, const std::string& rounds = "at_once",
                     const std::string& optimizer = "test rescale_grad=2")
      : rows_(workers) {
    heed(rows_, "rounds " + rounds);
    if (!optimizer.empty()) optimize(optimizer);
    send(0, rows_frame(Kind::kRowInit, 0, {}, {}));
  }

  void optimize(const std::string& optimizer) { heed(rows_, "optimizer " + optimizer); }
  Answers send(std::uint32_t worker, Frame frame) { return kvstore::send(rows_, worker, std::move(frame)); }
  Answers push(std::uint32_t worker, std::uint64_t step, const Ids& ids, const Values& values) {
    return send(worker, rows_frame(Kind::kRowPush, step, ids, values));
  }
  /// Of row 3, whose elements are 2 more after it.
  Answers push(std::uint32_t worker, std::uint64_t step) { return push(worker, step, {3}, {1, 1}); }
  Answers pull(std::uint32_t worker, std::uint64_t step, const Ids& ids = {3}) {
    return send(worker, rows_frame(Kind::kRowPull, step, ids, {}));
  }
  Answers meet(std::uint32_t worker) { return heed(rows_, "meet", worker); }
  Answers forget(std::uint32_t worker) {
    Answers answers;
    rows_.forget_worker(worker, answers);
    return answers;
  }

 private:
  RowAggregator rows_;
};

std::uint64_t staleness_in(const Answers& answers) {
  expect_only(answers, Kind::kRowAck);
  return staleness_of(answers.at(0).frame.header);
}

std::vector<std::uint32_t> ranks_in(const Answers& answers) {
  expect_only(answers, Kind::kRowHeld);
  return awaited_in(answers.at(0).frame);
}

TEST(RowAggregatorAtOnce, APushGoesInWhenItComesAndAPullBringsTheRowsAsTheyAre) {
  AsyncRows server(3);
  const auto acknowledged = server.push(1, 0, {3, 5}, {1, 2, 3, 4});
  expect_only(acknowledged, Kind::kRowAck);
  EXPECT_EQ(acknowledged[0].worker, 1U);
  expect_rows(server.pull(1, 1, {3, 4, 5}), {3, 5}, {2, 4, 6, 8});
  expect_rows(server.pull(0, 0, {3}), {3}, {2, 4});
  server.push(2, 0, {5, 7}, {1, 1, 1, 1});
  server.push(1, 1, {}, {});
  expect_rows(server.pull(0, 0, {3, 5, 7}), {3, 5, 7}, {2, 4, 8, 10, 2, 2});
}

TEST(RowAggregatorAtOnce, ARepeatedPushChangesNothing) {
  AsyncRows server(2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(staleness_in(server.push(0, 0)), 0U);
  server.push(1, 0);
  EXPECT_EQ(staleness_in(server.push(0, 0)), 0U) << "of the push, when it went in";
  server.push(0, 1);
  expect_only(server.push(0, 0), Kind::kRowAck);
  expect_rows(server.pull(1, 1), {3}, {6, 6});
}

TEST(RowAggregatorAtOnce, AnAcknowledgementTellsHowStaleThePushWas) {
  AsyncRows server(2);
  EXPECT_EQ(staleness_in(server.push(0, 0)), 0U);
  EXPECT_EQ(staleness_in(server.push(0, 1)), 0U);
  EXPECT_EQ(staleness_in(server.push(1, 0)), 2U);
  EXPECT_EQ(staleness_in(server.push(1, 1)), 2U);  // it was shown nothing since
  server.pull(1, 2);
  EXPECT_EQ(staleness_in(server.push(1, 2)), 0U);
}

// As where the push was lost, or is larger.
TEST(RowAggregatorAtOnce, APullThatComesBeforeItsWorkersPushWaitsForIt) {
  AsyncRows server(2);
  EXPECT_THAT(server.pull(0, 1), IsEmpty());
  EXPECT_THAT(ranks_in(server.pull(0, 1)), IsEmpty()) << "for nobody else";
  const auto answers = server.push(0, 0);
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(rows_in(answers[1].frame), std::pair(Ids{3}, Values{2, 2}));
  expect_rows(server.pull(0, 1), {3}, {2, 2});
  server.push(0, 1);
  EXPECT_THAT(server.pull(0, 1), IsEmpty()) << "its worker has gone on";
}

TEST(RowAggregatorAtOnce, APullOfWhoIsTooFarAheadIsAnsweredWhenTheSlowestHasCaughtUp) {
  AsyncRows server(3, "at_once staleness_bound=1");
  server.push(0, 0);
  expect_rows(server.pull(0, 1), {3}, {2, 2});
  expect_only(server.push(0, 1), Kind::kRowAck);
  EXPECT_THAT(server.pull(0, 2), IsEmpty());
  EXPECT_THAT(ranks_in(server.pull(0, 2)), ElementsAre(1, 2));
  EXPECT_THAT(server.push(1, 0), SizeIs(1));
  EXPECT_THAT(ranks_in(server.pull(0, 2)), ElementsAre(2));
  const auto answers = server.push(2, 0);
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[1].worker, 0U);
  EXPECT_EQ(rows_in(answers[1].frame), std::pair(Ids{3}, Values{8, 8})) << "the newest";
}

TEST(RowAggregatorAtOnce, NobodyWaitsForAWorkerThatHasLeft) {
  AsyncRows server(3, "at_once staleness_bound=0");
  EXPECT_THAT(server.forget(1), IsEmpty());
  server.push(0, 0);
  EXPECT_THAT(server.pull(0, 1), IsEmpty());
  const auto answers = server.forget(2);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, 0U);
  server.push(0, 1);
  expect_rows(server.pull(0, 2), {3}, {4, 4});
}

TEST(RowAggregatorAtOnce, AWorkerThatLeavesWhileItWaitsIsNotAnswered) {
  AsyncRows server(2, "at_once staleness_bound=0");
  server.push(0, 0);
  EXPECT_THAT(server.pull(0, 1), IsEmpty());
  EXPECT_THAT(server.forget(0), IsEmpty());
  EXPECT_THAT(server.push(1, 0), SizeIs(1));
}

TEST(RowAggregatorAtOnce, NobodyWaitsForWhoIsInACollectiveUntilAllAreThere) {
  AsyncRows server(3, "at_once staleness_bound=0");
  server.push(0, 0);
  EXPECT_THAT(server.pull(0, 1), IsEmpty());
  EXPECT_THAT(server.meet(1), IsEmpty());
  EXPECT_THAT(server.meet(2), SizeIs(1)) << "worker 0's pull";
  EXPECT_THAT(server.meet(0), IsEmpty());
  server.push(0, 1);
  EXPECT_THAT(server.pull(0, 2), IsEmpty()) << "they are awaited again";
}

TEST(RowAggregatorAtOnce, WhatMakesNoSenseIsRefusedAndChangesNothing) {
  AsyncRows server(2, "at_once", "");
  expect_refused(server.push(0, 0), "there is no optimizer that could; set one first");
  server.optimize("test rescale_grad=2");
  server.push(0, 0);
  expect_refused(server.push(0, 2), "for step 2 of worker 0, expected step 1");
  expect_refused(server.send(0, everything(1)), "does not say which rows");
  expect_rows(server.pull(1, 0), {3}, {2, 2});
}

TEST(RowAggregatorAtOnce, ALateInitUndoesNoPush) {
  AsyncRows server(1);
  server.push(0, 0);
  Frame late = rows_frame(Kind::kRowInit, 0, {3}, {7, 7});
  late.header.offset = 999;
  expect_only(server.send(0, std::move(late)), Kind::kRowAck);
  expect_rows(server.pull(0, 1), {3}, {2, 2});
}

// From a checkpoint, where workers had pushed different numbers of times.
TEST(RowAggregatorAtOnce, AllWorkersGoOnFromTheOneThatWasFurthest) {
  AsyncRows first(2);
  for (const std::uint64_t step : {0, 1, 2}) first.push(0, step);
  first.push(1, 0);
  Answers answers = first.send(0, rows_frame(Kind::kRowReadState, 0, {}, {}));
  expect_only(answers, Kind::kRowState);
  const RowState state = decode_row_state(answers[0].frame.payload.bytes(), kTable);
  EXPECT_EQ(state.next_step, 3U);

  AsyncRows second(2, "at_once staleness_bound=1");
  expect_rows(second.pull(1, 0), {}, {});  // its clocks have begun
  Frame load = rows_frame(Kind::kRowWriteState, 1, {}, {});
  load.payload = encode_state(state, kTable);
  expect_only(second.send(0, std::move(load)), Kind::kRowAck);
  expect_rows(second.pull(1, 3), {3}, {8, 8});
  for (const std::uint64_t step : {3, 4}) second.push(1, step);
  EXPECT_THAT(second.pull(1, 5), IsEmpty()) << "two ahead of the other";
  EXPECT_THAT(second.push(0, 3), SizeIs(2));
}

}  // namespace
}  // namespace gradwire::kvstore
