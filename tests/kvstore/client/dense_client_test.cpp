#include "kvstore/client/dense_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/wire/answer.h"
#include "tests/kvstore/client/tensor_rounds.h"
#include "tests/kvstore/worker_end.h"

namespace gradwire::kvstore {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;
using transport::Role;
using Verb = Operation::Verb;

class Parts : public testing::Test {
 protected:
  void make(const DenseClient::Settings& settings) {
    client_ = std::make_unique<DenseClient>(
        tensors_, end_.pending, end_.outbox, failover_, weights_, staleness_, settings,
        DenseClient::Events{[this](Tensor&, std::size_t part, const Frame&) { answered_.push_back(part); },
                            [this](Tensor&, const std::exception_ptr& error) {
                              ended_.push_back(error ? text_of(error) : "");
                            },
                            [this](const std::exception_ptr& error) { lost_ = text_of(error); },
                            [this](const std::exception_ptr& error) { failed_ = text_of(error); }});
  }
  void SetUp() override {
    make({WorkerEnd::kQuestion, WorkerEnd::kRetry});
    tensors_.add({"w", {20}}, three_parts());
  }
  Tensor& tensor() { return tensors_[0]; }
  /// Sends all parts of the tensor's next operation.
  std::vector<SentFrame> ask(Verb verb) {
    const Kind kind = verb == Verb::kPull ? Kind::kPull : Kind::kPush;
    end_.do_in_loop([&] {
      Operation operation;
      operation.verb = verb;
      begin(tensor(), std::move(operation), tensors_, end_.pending);
      if (kind == Kind::kPull) ++tensor().pulls;
      for (std::size_t part = 0; part < 3; ++part)
        client_->send(tensor(), part, kind,
                      {kind == Kind::kPull ? transport::Buffer() : text_payload("floats")});
    });
    return end_.take_sent();
  }
  void answer(const SentFrame& request, Kind kind, std::string_view text = {}, bool is_whole = true) {
    Frame frame = answer_to(request.frame.header, kind, text_payload(text));
    frame.payload.seal();
    if (!is_whole) frame.payload.seal(*frame.payload.checksum() + 1);
    end_.do_in_loop([&] { client_->handle({Role::kServer, request.server}, std::move(frame)); });
  }
  void refuse(const SentFrame& request, Refusal how) {
    Frame frame = refusal_of(request.frame.header, {how, "no"});
    end_.do_in_loop([&] { client_->handle({Role::kServer, request.server}, std::move(frame)); });
  }
  static auto of(Kind kind) {
    return Field(&SentFrame::frame, Field(&Frame::header, Field(&FrameHeader::kind, kind)));
  }

  WorkerEnd end_;
  TensorTable tensors_{1};
  Failover failover_{Role::kServer};
  StalenessCounts staleness_;
  transport::BufferPool buffers_;
  WeightReceiver weights_{false, buffers_};
  std::vector<std::size_t> answered_;
  std::vector<std::string> ended_;
  std::string lost_, failed_;
  std::unique_ptr<DenseClient> client_;
};

TEST_F(Parts, AreAskedOfTheServersThatHaveThem) {
  const auto sent = ask(Verb::kPushPull);
  ASSERT_THAT(sent, SizeIs(3));
  for (const SentFrame& each : sent) EXPECT_EQ(each.server, each.frame.header.offset == 16 ? 1 : 0);
  answer(sent[2], Kind::kReply);
  answer(sent[2], Kind::kReply);  // late: it was asked for twice
  EXPECT_THAT(answered_, SizeIs(1));
  EXPECT_FALSE(tensor().is_answered(1) && tensor().is_answered(0));
  EXPECT_EQ(client_->encoded_bytes(), 3 * 6);
}

TEST_F(Parts, APushIsNotSentTwiceItsServerIsAskedForIt) {
  const auto sent = ask(Verb::kPushPull);
  const auto asked = end_.retry_after(WorkerEnd::kQuestion);
  EXPECT_THAT(asked, SizeIs(3));
  EXPECT_THAT(asked, Each(of(Kind::kProbe)));
  EXPECT_EQ(asked[0].frame.payload.size_bytes(), 0);
  answer(sent[0], Kind::kMissing);
  const auto again = end_.take_sent();
  ASSERT_THAT(again, ElementsAre(of(Kind::kPush)));
  EXPECT_EQ(transport::payload_text(again[0].frame), "floats");
}

TEST_F(Parts, APushCountsOnceUntilItIsAnswered) {
  constexpr std::uint64_t kOne = transport::kHeaderBytes + 6;
  const auto unanswered = [this](std::uint32_t server) {
    std::uint64_t bytes = 0;
    end_.do_in_loop([&] { bytes = end_.outbox.unanswered_bytes(server); });
    return bytes;
  };
  auto sent = ask(Verb::kPushPull);
  std::ranges::sort(sent, {}, &SentFrame::server);  // two are server 0's
  EXPECT_EQ(unanswered(0), 2 * kOne);
  EXPECT_EQ(unanswered(1), kOne);
  answer(sent[0], Kind::kMissing);
  refuse(sent[1], Refusal::kSendAgain);
  EXPECT_THAT(end_.take_sent(), SizeIs(2));
  EXPECT_EQ(unanswered(0), 2 * kOne) << "sent again, not once more";
  answer(sent[0], Kind::kReply);
  answer(sent[0], Kind::kReply);
  EXPECT_EQ(unanswered(0), kOne);
  answer(sent[2], Kind::kReply);
  EXPECT_EQ(unanswered(1), 0);
  end_.do_in_loop([this] { client_->all_ended(); });
  EXPECT_EQ(unanswered(0), 0);
}

TEST_F(Parts, APullIsSimplySentAgain) {
  ask(Verb::kPull);
  EXPECT_THAT(end_.retry_after(WorkerEnd::kQuestion), Each(of(Kind::kPull)));
}

TEST_F(Parts, AnAnswerToAnEarlierPullIsNone) {
  const auto first = ask(Verb::kPull);
  end_.do_in_loop([&] { end(tensor(), end_.pending); });
  ask(Verb::kPull);
  answer(first[0], Kind::kValue);
  EXPECT_THAT(answered_, IsEmpty());
  end_.do_in_loop([&] { end(tensor(), end_.pending); });
  ask(Verb::kPushPull);
  answer(first[0], Kind::kValue);
  EXPECT_THAT(answered_, IsEmpty());
}

TEST_F(Parts, AnAcknowledgementIsNoAnswerToAPushOfARound) {
  const auto sent = ask(Verb::kPushPull);
  answer(sent[0], Kind::kAck);
  EXPECT_THAT(ended_, IsEmpty());
  make({WorkerEnd::kQuestion, WorkerEnd::kRetry, true});
  answer(sent[0], Kind::kAck);
  EXPECT_THAT(ended_, ElementsAre(""));
}

TEST_F(Parts, HeldOnesNameWhoIsAwaitedAndAreNotAskedForWhenAWorkerLeaves) {
  const auto sent = ask(Verb::kPushPull);
  const std::vector<std::uint32_t> awaited{2};
  Frame said = held(sent[0].frame.header, awaited);
  std::vector<std::string> warnings;
  end_.do_in_loop([&] {
    client_->handle({Role::kServer, sent[0].server}, std::move(said));
    warnings = end_.pending.warnings(WorkerEnd::Clock::now() + WorkerEnd::kLimits.warning);
    client_->ask_what_is_not_held(tensor());
  });
  EXPECT_THAT(warnings, ElementsAre("key 'w' has waited 60 s for worker 2"));
  EXPECT_THAT(end_.take_sent(), SizeIs(2));
}

TEST_F(Parts, AWaitUpstreamOfTheServerIsNotThisWorkers) {
  const auto sent = ask(Verb::kPushPull);
  end_.do_in_loop([&] { tensor().pending->began -= WorkerEnd::kLimits.warning; });
  Frame said = held(sent[0].frame.header, {});
  bool is_fresh = false;
  end_.do_in_loop([&] {
    client_->handle({Role::kServer, sent[0].server}, std::move(said));
    is_fresh = end_.pending.warnings(WorkerEnd::Clock::now() + std::chrono::seconds(2)).empty();
  });
  EXPECT_TRUE(is_fresh);
}

TEST_F(Parts, ARefusedPushIsLostToAllAndARefusedPullToItsCaller) {
  auto sent = ask(Verb::kPushPull);
  refuse(sent[0], Refusal::kFinal);
  EXPECT_EQ(lost_, "server " + std::to_string(sent[0].server) + " refused key 'w': no");
  EXPECT_THAT(ended_, IsEmpty());
  end_.do_in_loop([&] { end(tensor(), end_.pending); });
  sent = ask(Verb::kPull);
  refuse(sent[1], Refusal::kFinal);
  EXPECT_THAT(ended_, ElementsAre(HasSubstr("refused key 'w': no")));
}

TEST_F(Parts, WhatArrivesDamagedThereIsSentAgainSoOften) {
  const auto sent = ask(Verb::kPushPull);
  for (int i = 0; i < kMaxResends; ++i) refuse(sent[0], Refusal::kSendAgain);
  EXPECT_EQ(lost_, "");
  EXPECT_THAT(end_.take_sent(), SizeIs(kMaxResends));
  refuse(sent[0], Refusal::kSendAgain);
  EXPECT_THAT(lost_, HasSubstr("refused key 'w'"));
}

/// Whose payload is gone: its answer came, damaged, and behind it comes an older one to an earlier copy.
TEST_F(Parts, APushThatWasAnsweredIsNotSentAgainWithoutItsPayload) {
  const auto sent = ask(Verb::kPushPull);
  const auto index = static_cast<std::size_t>(sent[0].frame.header.offset / 8);
  answer(sent[0], Kind::kReply);
  end_.do_in_loop([&] { EXPECT_TRUE(client_->ask_again(tensor(), index)); });
  EXPECT_THAT(end_.take_sent(), ElementsAre(of(Kind::kProbe)));
  answer(sent[0], Kind::kMissing);
  refuse(sent[0], Refusal::kSendAgain);
  EXPECT_THAT(end_.take_sent(), IsEmpty());
  EXPECT_EQ(lost_, "");
}

TEST_F(Parts, WhatArrivesDamagedHereIsAskedForAgainSoOften) {
  const auto sent = ask(Verb::kPushPull);
  const auto index = static_cast<std::size_t>(sent[0].frame.header.offset / 8);
  for (int i = 0; i < kMaxResends; ++i) {
    answer(sent[0], Kind::kReply);
    bool asks = false;
    end_.do_in_loop([&] { asks = client_->ask_again(tensor(), index); });
    EXPECT_TRUE(asks);
  }
  EXPECT_THAT(end_.take_sent(), SizeIs(kMaxResends));
  bool asks = true;
  end_.do_in_loop([&] { asks = client_->ask_again(tensor(), index); });
  EXPECT_FALSE(asks);
}

TEST_F(Parts, AWordThatArrivesDamagedIsNoWord) {
  const auto sent = ask(Verb::kPull);
  answer(sent[0], Kind::kAck, "x", false);
  EXPECT_THAT(ended_, IsEmpty());
}

TEST_F(Parts, AtAServerThatHasLeftFailTheJob) {
  failover_.leave(1, "");
  ask(Verb::kPushPull);
  EXPECT_THAT(failed_, HasSubstr("server 1 left the job"));
}

TEST_F(Parts, GoInTheOrderOfSubmissionWhereALibrarySums) {
  make({WorkerEnd::kQuestion, WorkerEnd::kRetry, false, true});
  tensors_.add({"v", {8}}, std::vector<Part>{{0, 0, 8}});
  end_.do_in_loop([&] {
    Operation first, second;
    client_->expect(tensors_[0], first);
    client_->expect(tensors_[1], second);
    begin(tensors_[0], std::move(first), tensors_, end_.pending);
    begin(tensors_[1], std::move(second), tensors_, end_.pending);
    client_->send(tensors_[1], 0, Kind::kPush, {text_payload("late")});
    for (const std::size_t part : {2U, 1U})
      client_->send(tensors_[0], part, Kind::kPush, {text_payload("x")});
  });
  EXPECT_THAT(end_.take_sent(), IsEmpty()) << "part 0 comes first";
  EXPECT_THAT(end_.retry_after(WorkerEnd::kRetry), IsEmpty()) << "what has not gone cannot be missed";
  end_.do_in_loop([&] { client_->send(tensors_[0], 0, Kind::kPush, {text_payload("x")}); });
  const auto sent = end_.take_sent();
  std::vector<std::pair<KeyId, std::uint64_t>> order;
  for (const SentFrame& each : sent) order.emplace_back(each.frame.header.key, each.frame.header.offset);
  EXPECT_THAT(order, testing::UnorderedElementsAre(std::pair(0, 0), std::pair(0, 8), std::pair(0, 16),
                                                   std::pair(1, 0)));
  EXPECT_THAT(end_.retry_after(4 * WorkerEnd::kRetry), Each(of(Kind::kProbe)));
}

// A question is small, and overtakes a push that waits for credit.
TEST_F(Parts, APushThatStillWaitsToLeaveIsNotSentTwice) {
  const std::string large(1 << 20, 'x');  // all credit
  end_.do_in_loop([&] {
    Operation push;
    push.verb = Verb::kPush;
    begin(tensor(), std::move(push), tensors_, end_.pending);
    for (std::size_t part = 0; part < 3; ++part)
      client_->send(tensor(), part, Kind::kPush, {text_payload(large)});
    end_.outbox.flush(WorkerEnd::Clock::now());
    for (const TensorPart& part : tensor().parts) {
      FrameHeader probe;
      probe.offset = part.part.offset;
      probe.count = part.part.count;
      probe.step = tensor().step - 1;
      Frame missing = answer_to(probe, Kind::kMissing);
      client_->handle({Role::kServer, part.part.server}, std::move(missing));
    }
  });
  std::map<std::uint64_t, int> times;
  for (int i = 0; i < 4; ++i) {  // each time what was sent gives its credit back
    for (const SentFrame& each : end_.take_sent()) ++times[each.frame.header.offset];
  }
  EXPECT_EQ(times[16], 2) << "server 1's only one had left";
  EXPECT_EQ(times[0] + times[8], 3) << "of server 0's two, one had left";
}

TEST_F(Parts, APushSaysHowItTravels) {
  tensors_.set_compression(compression("2bit:threshold=0.5"));
  const FrameHeader header = ask(Verb::kPushPull)[0].frame.header;
  EXPECT_EQ(header.codec, static_cast<std::uint8_t>(compress::WireId::kTwoBit));
  EXPECT_EQ(header.step, 0);
  EXPECT_EQ(header.reply, static_cast<std::uint8_t>(compress::ReplyKind::kSame));
  EXPECT_EQ(header.codec_parameters, tensor().codec().wire_parameters());
}

}  // namespace
}  // namespace gradwire::kvstore
