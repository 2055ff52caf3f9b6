#include "kvstore/rows/row_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/wire/answer.h"
#include "kvstore/wire/protocol.h"
#include "tests/kvstore/worker_end.h"

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using transport::Frame;
using transport::Kind;
using transport::Role;

RowRequest request_to(std::uint32_t server, Kind kind, std::uint64_t number, std::uint64_t table = 4) {
  RowRequest request;
  request.server = server;
  request.header.kind = kind;
  request.header.key = table;
  request.header.offset = number;
  request.payload = text_payload("rows");
  return request;
}

std::string message_of(const Ticket& ticket) {
  try {
    ticket.wait();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

class RowRequests : public testing::Test {
 protected:
  ~RowRequests() override {
    end_.do_in_loop([this] { client_.fail_all(std::make_exception_ptr(std::runtime_error("over"))); });
  }
  RowOperation submit(Kind kind, std::uint64_t number, std::uint64_t table = 4) {
    RowOperation operation;
    operation.what = "rows of 'embedding'";
    for (const std::uint32_t server : {0U, 1U})
      operation.requests.push_back(request_to(server, kind, number, table));
    RowOperation kept{operation.what, {}, operation.answers, operation.done};
    client_.submit(std::move(operation));
    return kept;
  }
  void answer(std::uint32_t server, Kind kind, std::uint64_t number, std::string_view text = {},
              bool is_whole = true) {
    Frame frame{request_to(server, Kind::kRowPush, number).header, text_payload(text)};
    frame.header.kind = kind;
    if (kind == Kind::kError) frame.header.content = static_cast<std::uint8_t>(Refusal::kRows);
    frame.payload.seal();
    if (!is_whole) frame.payload.seal(*frame.payload.checksum() + 1);
    end_.do_in_loop([&] { client_.handle({Role::kServer, server}, frame); });
  }
  std::string failure() {
    std::string text;
    end_.do_in_loop([&] { text = failure_; });
    return text;
  }

  WorkerEnd end_;
  StalenessCounts staleness_;
  std::string failure_;
  RowClient client_{end_.loop,
                    end_.outbox,
                    end_.pending,
                    Role::kServer,
                    {WorkerEnd::kQuestion, WorkerEnd::kRetry},
                    [this](const std::exception_ptr& error) { failure_ = kvstore::text_of(error); },
                    &staleness_};
};

TEST_F(RowRequests, AreDoneWhenEveryServerHasAnswered) {
  const RowOperation pull = submit(Kind::kRowPull, 7);
  EXPECT_THAT(end_.take_sent(), SizeIs(2));
  answer(1, Kind::kRowReply, 7, "one");
  answer(1, Kind::kRowReply, 7, "one");  // of a request that was sent twice
  EXPECT_FALSE(pull.done.done());
  answer(0, Kind::kRowReply, 6, "late");  // to what was asked before
  EXPECT_FALSE(pull.done.done());
  answer(0, Kind::kRowReply, 7, "zero");
  ASSERT_TRUE(pull.done.done());
  ASSERT_THAT(*pull.answers, SizeIs(2));
  EXPECT_EQ(pull.answers->at(0).server, 1);
  EXPECT_EQ(transport::payload_text(pull.answers->at(0).frame), "one");
}

TEST_F(RowRequests, OfOneTableGoOneOperationAfterTheOther) {
  const RowOperation first = submit(Kind::kRowPush, 1), second = submit(Kind::kRowPull, 2);
  const RowOperation elsewhere = submit(Kind::kRowPush, 1, 5);
  EXPECT_THAT(end_.take_sent(), SizeIs(4)) << "two tables";
  answer(0, Kind::kRowAck, 1);
  EXPECT_THAT(end_.take_sent(), IsEmpty());
  answer(1, Kind::kRowAck, 1);
  EXPECT_TRUE(first.done.done());
  const auto sent = end_.take_sent();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].frame.header.kind, Kind::kRowPull);
}

TEST_F(RowRequests, WithoutAnAnswerAreSentAgain) {
  submit(Kind::kRowPush, 1);
  answer(0, Kind::kRowAck, 1);
  end_.take_sent();
  EXPECT_THAT(end_.retry_after(WorkerEnd::kQuestion), ElementsAre(testing::Field(&SentFrame::server, 1)));
}

TEST_F(RowRequests, NameThoseWhomAServerAwaits) {
  submit(Kind::kRowPull, 1);
  const std::vector<std::uint32_t> awaited{2};
  const Frame said = held(request_to(1, Kind::kRowPull, 1).header, awaited, Kind::kRowHeld);
  std::vector<std::string> warnings;
  end_.do_in_loop([&] {
    Frame frame{said.header, said.payload.share()};
    client_.handle({Role::kServer, 1}, frame);
    warnings = end_.pending.warnings(WorkerEnd::Clock::now() + WorkerEnd::kLimits.warning);
  });
  EXPECT_THAT(warnings, ElementsAre("rows of 'embedding' have waited 60 s for worker 2"));
}

TEST_F(RowRequests, WhatArrivesDamagedIsSentAgainSoOften) {
  submit(Kind::kRowPull, 1);
  end_.take_sent();
  for (int i = 0; i < kMaxResends; ++i)
    answer(0, i % 2 == 0 ? Kind::kRowReply : Kind::kRowMissing, 1, "x", i % 2 == 1);
  EXPECT_THAT(end_.take_sent(), SizeIs(kMaxResends));
  EXPECT_EQ(failure(), "");
  answer(0, Kind::kRowMissing, 1);
  EXPECT_EQ(failure(), "rows of 'embedding': what this worker and server 0 send each other arrives damaged");
}

TEST_F(RowRequests, ARefusedPushEndsAllAndARefusedPullItself) {
  const RowOperation pull = submit(Kind::kRowPull, 1);
  answer(1, Kind::kError, 1, "no such row");
  EXPECT_EQ(message_of(pull.done), "server 1 refused rows of 'embedding': no such row");
  EXPECT_EQ(failure(), "");
  const RowOperation push = submit(Kind::kRowPush, 2);
  answer(1, Kind::kError, 2, "no such row");
  EXPECT_FALSE(push.done.done()) << "whoever hears of it fails it";
  EXPECT_THAT(failure(), HasSubstr("server 1 refused rows of 'embedding'"));
}

TEST_F(RowRequests, OfAStateThatIsRefusedAreMisuse) {
  const RowOperation state = submit(Kind::kRowReadState, 1);
  answer(0, Kind::kError, 1, "a round is under way");
  EXPECT_THROW(state.done.wait(), std::invalid_argument);
}

TEST_F(RowRequests, FailTogetherAndSoDoThoseThatCome) {
  const RowOperation active = submit(Kind::kRowPush, 1), waiting = submit(Kind::kRowPush, 2);
  end_.do_in_loop([this] { client_.fail_all(std::make_exception_ptr(std::runtime_error("over"))); });
  const RowOperation later = submit(Kind::kRowPush, 3);
  for (const RowOperation* each : {&active, &waiting, &later}) EXPECT_EQ(message_of(each->done), "over");
  bool is_idle = false;
  end_.do_in_loop([&] { is_idle = end_.pending.idle(); });
  EXPECT_TRUE(is_idle);
}

TEST_F(RowRequests, CountHowStaleTheirPushesWere) {
  submit(Kind::kRowPush, 1);
  for (const std::uint32_t server : {0U, 1U}) {
    Frame frame{request_to(server, Kind::kRowPush, 1).header, {}};
    frame.header.kind = Kind::kRowAck;
    set_staleness(frame.header, 3);
    end_.do_in_loop([&] { client_.handle({Role::kServer, server}, frame); });
  }
  EXPECT_THAT(staleness_.get(), ElementsAre(std::pair(3, 2)));
}

}  // namespace
}  // namespace gradwire::kvstore
