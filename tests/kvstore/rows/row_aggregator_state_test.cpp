// What is kept of a table's rows between rounds, read and written by workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <string>

#include "compress/codecs.h"
#include "kvstore/rows/row_aggregator.h"
#include "kvstore/rows/row_state.h"
#include "kvstore/wire/protocol.h"
#include "tests/kvstore/requests.h"

namespace gradwire::kvstore {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using transport::Buffer;
using transport::Frame;
using transport::Kind;
using Ids = std::vector<std::uint64_t>;
using Values = std::vector<float>;

constexpr RowShape kTable{20, 2};

/// One worker's server.
class RowServer {
 public:
  explicit RowServer(const std::string& optimizer = "") {
    if (optimizer.empty()) return;
    Answers none;
    rows_.heed(0, command("optimizer " + optimizer), none);
  }

  Frame ask(Kind kind, std::uint64_t step, Buffer payload, std::uint64_t count = 0) {
    Frame frame;
    frame.header.kind = kind;
    frame.header.key = 4;
    frame.header.step = step;
    frame.header.offset = ++requests_;
    frame.header.count = count;
    frame.payload = std::move(payload);
    return answer(std::move(frame));
  }
  Frame answer(Frame frame) {
    Answers answers;
    rows_.handle(0, std::move(frame), answers);
    EXPECT_THAT(answers, SizeIs(1));
    return std::move(answers.at(0).frame);
  }
  Frame send(Kind kind, std::uint64_t step, const Ids& ids, const Values& values,
             const RowShape& shape = kTable) {
    Buffer payload = Buffer::allocate(max_row_head_bytes(ids.size()) + values.size() * sizeof(float));
    const std::size_t head = write_row_head(shape, ids, payload.bytes());
    std::ranges::copy(std::as_bytes(std::span(values)), payload.bytes().subspan(head).begin());
    payload.truncate(head + values.size() * sizeof(float));
    return ask(kind, step, std::move(payload), ids.size());
  }
  void init(const Ids& ids, const Values& values) { send(Kind::kRowInit, 0, ids, values); }
  void push(std::uint64_t step, const Ids& ids, const Values& values) {
    EXPECT_EQ(send(Kind::kRowPush, step, ids, values).header.kind, Kind::kRowAck);
  }
  Frame read_from(std::uint64_t first) { return send(Kind::kRowReadState, first, {}, {}); }
  RowState read() {
    const Frame answer = read_from(0);
    EXPECT_EQ(answer.header.kind, Kind::kRowState) << payload_text(answer);
    EXPECT_EQ(answer.header.step, kTable.rows) << "nothing follows";
    return decode_row_state(answer.payload.bytes(), kTable);
  }
  Frame write(std::uint64_t load, const RowState& state) {
    return ask(Kind::kRowWriteState, load, encode_state(state, kTable));
  }

 private:
  std::uint64_t requests_ = 0;
  RowAggregator rows_{1};
};

TEST(RowAggregatorState, OfWhatIsNotHeldIsEmpty) {
  RowServer server;
  EXPECT_EQ(server.read(), RowState());
}

TEST(RowAggregatorState, WeightsAndMomentsGoOnElsewhereAsTheyWouldHaveHere) {
  RowServer first("adam learning_rate=0.5");
  first.init({3, 9}, {1, 2, 3, 4});
  first.push(0, {3, 5}, {1, -1, 2, 1});
  const RowState state = first.read();
  EXPECT_EQ(state.next_step, 1U);
  EXPECT_EQ(state.optimizer_steps, 1U);
  EXPECT_TRUE(state.has_values);
  EXPECT_EQ(state.values.ids, (Ids{3, 5, 9}));
  EXPECT_EQ(state.moments.ids, (Ids{3, 5}));
  EXPECT_THAT(state.moments.values, SizeIs(8));

  RowServer second("adam learning_rate=0.5");
  second.init({1}, {7, 7});  // of the job that begins: gone
  EXPECT_EQ(second.write(1, state).header.kind, Kind::kRowAck);
  EXPECT_EQ(second.read(), state);
  for (RowServer* const server : {&first, &second}) server->push(1, {3, 9}, {1, 1, 2, 2});
  EXPECT_EQ(second.read(), first.read());
}

TEST(RowAggregatorState, ResidualsOfRepliesGoOn) {
  const auto codec = compress::make(compress::parse_spec("2bit:threshold=0.5"));
  const auto push = [&](RowServer& server, std::uint64_t step) {
    const Values grad = {0.6F, -0.7F};
    Values residual(2);
    Buffer payload = Buffer::allocate(max_row_head_bytes(1) + codec->max_encoded_size(2));
    const std::size_t head = write_row_head(kTable, Ids{3}, payload.bytes());
    payload.truncate(head + codec->encode(grad, residual, {}, payload.bytes().subspan(head)).bytes);
    Frame frame;
    frame.header.kind = Kind::kRowPush;
    frame.header.key = 4;
    frame.header.step = step;
    frame.header.count = 1;
    frame.header.codec = static_cast<std::uint8_t>(codec->wire_id());
    frame.header.codec_parameters = codec->wire_parameters();
    frame.header.reply = static_cast<std::uint8_t>(compress::ReplyKind::kSame);
    frame.payload = std::move(payload);
    server.answer(std::move(frame));
    return payload_text(server.ask(Kind::kRowPull, step + 1, {}));
  };
  RowServer first;
  for (std::uint64_t step = 0; step < 3; ++step) push(first, step);
  EXPECT_THAT(first.read().residuals.ids, SizeIs(1));
  RowServer second;
  second.write(1, first.read());
  for (std::uint64_t step = 3; step < 6; ++step) EXPECT_EQ(push(second, step), push(first, step));
  EXPECT_EQ(second.read(), first.read());
}

// As several workers send them, in any order and some of them twice.
TEST(RowAggregatorState, PiecesOfOneLoadMeetAndLaterOnesTakeTheirPlace) {
  RowServer server;
  const RowState one{5, 0, true, {{3}, {1, 2}}, {}, {}}, other{5, 0, true, {{4}, {3, 4}}, {}, {}};
  server.write(1, {2, 0, true, {{7}, {9, 9}}, {}, {}});
  for (const RowState& piece : {one, other, one}) server.write(2, piece);
  server.write(1, {2, 0, true, {{7}, {9, 9}}, {}, {}});  // late
  const RowState both{5, 0, true, {{3, 4}, {1, 2, 3, 4}}, {}, {}};
  EXPECT_EQ(server.read(), both);
}

TEST(RowAggregatorState, LongTablesAreReadPieceByPiece) {
  constexpr RowShape kLong{5, 600'000};
  RowServer server;
  for (const std::uint64_t id : {0, 2, 4})
    server.send(Kind::kRowInit, 0, {id}, Values(kLong.row_elements, static_cast<float>(id)), kLong);
  Ids ids;
  std::uint64_t next = 0;
  int pieces = 0;
  for (; next < kLong.rows; ++pieces) {
    const Frame answer = server.send(Kind::kRowReadState, next, {}, {}, kLong);
    const RowState piece = decode_row_state(answer.payload.bytes(), kLong);
    ids.insert(ids.end(), piece.values.ids.begin(), piece.values.ids.end());
    next = answer.header.step;
  }
  EXPECT_EQ(ids, (Ids{0, 2, 4}));
  EXPECT_EQ(pieces, 2);
}

TEST(RowAggregatorState, IsNotReadOrWrittenOverRounds) {
  RowAggregator two(2);
  Answers answers;
  Frame push;
  push.header.kind = Kind::kRowPush;
  push.payload = Buffer::allocate(max_row_head_bytes(0));
  push.payload.truncate(write_row_head(kTable, {}, push.payload.bytes()));
  two.handle(1, {push.header, push.payload.copy()}, answers);
  push.header.kind = Kind::kRowReadState;
  two.handle(0, std::move(push), answers);
  EXPECT_THAT(payload_text(answers.back().frame), HasSubstr("step 0 is under way"));
  RowServer server;
  server.push(0, {3}, {1, 1});
  const Frame refused = server.write(1, {});
  EXPECT_EQ(refused.header.kind, Kind::kError);
  EXPECT_THAT(payload_text(refused), HasSubstr("load a checkpoint into a job that has not pushed yet"));
}

TEST(RowAggregatorState, MomentsMustBeTheOptimizersOwn) {
  const RowState of_adam{1, 1, true, {{3}, {1, 2}}, {}, {{3}, {1, 2, 3, 4}}};
  RowServer none, sgd("sgd momentum=0.9"), adam("adam");
  EXPECT_THAT(payload_text(none.write(1, of_adam)), HasSubstr("no optimizer is set"));
  EXPECT_THAT(payload_text(sgd.write(1, of_adam)), HasSubstr("2 moments an element given, but sgd keeps 1"));
  EXPECT_EQ(adam.write(1, of_adam).header.kind, Kind::kRowAck);
}

// Its sums were given before the checkpoint.
TEST(RowAggregatorState, SumsAreNotPulledBeforeTheNextRound) {
  RowServer server;
  server.write(1, {5, 0, false, {}, {}, {}});
  const Frame refused = server.send(Kind::kRowPull, 5, {3}, {});
  EXPECT_EQ(refused.header.kind, Kind::kError);
  EXPECT_THAT(payload_text(refused), HasSubstr("pull after a push of your own"));
  server.push(5, {3}, {1, 2});
  EXPECT_EQ(server.send(Kind::kRowPull, 6, {3}, {}).header.kind, Kind::kRowReply);
}

TEST(RowAggregatorState, HostileFramesChangeNothing) {
  std::mt19937 random(5);
  RowServer server;
  server.init({3}, {1, 2});
  server.push(0, {3}, {1, 2});
  const RowState before = server.read();
  const auto good = encode_state({5, 0, true, {{3}, {1, 2}}, {}, {}}, kTable);
  for (int round = 0; round < 3000; ++round) {
    Buffer payload = good.copy();
    for (std::size_t edits = 1 + random() % 4; edits > 0; --edits)
      payload.bytes()[random() % payload.size_bytes()] = static_cast<std::byte>(random());
    payload.truncate(random() % (payload.size_bytes() + 1));
    const Kind kind = random() % 2 == 0 ? Kind::kRowReadState : Kind::kRowWriteState;
    server.ask(kind, random(), std::move(payload), random() % 3);
  }
  EXPECT_EQ(server.read(), before);
}

}  // namespace
}  // namespace gradwire::kvstore
