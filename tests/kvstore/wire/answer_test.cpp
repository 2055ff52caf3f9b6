#include "kvstore/wire/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using transport::FrameHeader;
using transport::Kind;

FrameHeader request_of(Kind kind, std::uint64_t count) {
  FrameHeader header;
  header.kind = kind;
  header.count = count;
  return header;
}

TEST(Answers, AreOfWhatTheirRequestWasAbout) {
  const FrameHeader push = request_of(Kind::kPush, 8), command = request_of(Kind::kCommand, 0);
  for (const Kind kind : {Kind::kReply, Kind::kValue, Kind::kHeld, Kind::kMissing, Kind::kState, Kind::kAck})
    EXPECT_EQ(subject_of(answer_to(push, kind).header), Subject::kTensor) << static_cast<int>(kind);
  EXPECT_EQ(subject_of(answer_to(command, Kind::kAck).header), Subject::kCommand);
  for (const Kind kind : {Kind::kRowAck, Kind::kRowReply, Kind::kRowHeld, Kind::kRowMissing, Kind::kRowState})
    EXPECT_EQ(subject_of(request_of(kind, 0)), Subject::kRows) << static_cast<int>(kind);
  for (const Kind kind : {Kind::kLetter, Kind::kDelivered})
    EXPECT_EQ(subject_of(request_of(kind, 8)), Subject::kLetter) << static_cast<int>(kind);
}

TEST(Answers, ARefusalIsOfWhatWasRefused) {
  const FrameHeader push = request_of(Kind::kPush, 8), command = request_of(Kind::kCommand, 0);
  EXPECT_EQ(subject_of(refusal_of(push, {Refusal::kFinal, "no"}).header), Subject::kTensor);
  EXPECT_EQ(subject_of(refusal_of(push, {Refusal::kSendAgain, "no"}).header), Subject::kTensor);
  EXPECT_EQ(subject_of(refusal_of(command, {Refusal::kFinal, "no"}).header), Subject::kCommand);
  EXPECT_EQ(subject_of(refusal_of(push, {Refusal::kRows, "no"}).header), Subject::kRows);
  EXPECT_EQ(subject_of(refusal_of(push, {Refusal::kLetter, "no"}).header), Subject::kLetter);
}

TEST(Answers, KeepTheRequestsIdentity) {
  FrameHeader request = request_of(Kind::kPush, 8);
  request.key = 3;
  request.step = 4;
  request.offset = 5;
  request.priority = -6;
  request.flags = 7;
  request.content = 1;
  const FrameHeader answer = answer_to(request, Kind::kReply).header;
  EXPECT_EQ(answer.key, 3);
  EXPECT_EQ(answer.step, 4);
  EXPECT_EQ(answer.offset, 5);
  EXPECT_EQ(answer.count, 8);
  EXPECT_EQ(answer.priority, -6);
  EXPECT_EQ(answer.flags, 0);
  EXPECT_EQ(answer.content, 0);
}

TEST(Answers, SayWhoIsAwaited) {
  const std::vector<std::uint32_t> ranks{2, 7};
  EXPECT_THAT(awaited_in(held(request_of(Kind::kPush, 8), ranks)), ElementsAre(2, 7));
  EXPECT_THAT(awaited_in(held(request_of(Kind::kPush, 8), {})), IsEmpty());
}

}  // namespace
}  // namespace gradwire::kvstore
