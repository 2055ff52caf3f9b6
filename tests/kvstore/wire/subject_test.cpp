#include "kvstore/wire/subject.h"

#include <gtest/gtest.h>

#include "kvstore/wire/answer.h"

namespace gradwire::kvstore {
namespace {

using transport::FrameHeader;
using transport::Kind;

FrameHeader request_of(Kind kind, std::uint64_t count) {
  FrameHeader header;
  header.kind = kind;
  header.count = count;
  return header;
}

TEST(Subject, OfARequestIsItsKinds) {
  for (const Kind kind :
       {Kind::kInit, Kind::kPush, Kind::kPull, Kind::kProbe, Kind::kReadState, Kind::kWriteState})
    EXPECT_EQ(subject_of_request(kind), Subject::kTensor) << static_cast<int>(kind);
  for (const Kind kind :
       {Kind::kRowInit, Kind::kRowPush, Kind::kRowPull, Kind::kRowReadState, Kind::kRowWriteState})
    EXPECT_EQ(subject_of_request(kind), Subject::kRows) << static_cast<int>(kind);
  for (const Kind kind : {Kind::kPost, Kind::kFetch, Kind::kReceipt})
    EXPECT_EQ(subject_of_request(kind), Subject::kBlob) << static_cast<int>(kind);
  EXPECT_EQ(subject_of_request(Kind::kCommand), Subject::kCommand);
}

/// Above all not of a command: what is carried out is numbered and kept for repeats.
TEST(Subject, OfAnAnswerThatAServerGetsIsATensors) {
  for (const Kind kind : {Kind::kAck, Kind::kRowAck, Kind::kBlob, Kind::kTime, Kind{200}})
    EXPECT_EQ(subject_of_request(kind), Subject::kTensor) << static_cast<int>(kind);
}

TEST(Subject, AnAnswerIsOfWhatItsRequestWasAbout) {
  const FrameHeader push = request_of(Kind::kPush, 8), command = request_of(Kind::kCommand, 0);
  for (const Kind kind : {Kind::kReply, Kind::kValue, Kind::kHeld, Kind::kMissing, Kind::kState, Kind::kAck})
    EXPECT_EQ(subject_of_answer(answer_to(push, kind).header), Subject::kTensor) << static_cast<int>(kind);
  EXPECT_EQ(subject_of_answer(answer_to(command, Kind::kAck).header), Subject::kCommand);
  for (const Kind kind : {Kind::kRowAck, Kind::kRowReply, Kind::kRowHeld, Kind::kRowMissing, Kind::kRowState})
    EXPECT_EQ(subject_of_answer(request_of(kind, 0)), Subject::kRows) << static_cast<int>(kind);
  for (const Kind kind : {Kind::kBlob, Kind::kDelivered})
    EXPECT_EQ(subject_of_answer(request_of(kind, 8)), Subject::kBlob) << static_cast<int>(kind);
}

TEST(Subject, ARefusalIsOfWhatWasRefused) {
  const FrameHeader push = request_of(Kind::kPush, 8), command = request_of(Kind::kCommand, 0);
  EXPECT_EQ(subject_of_answer(refusal_of(push, {Refusal::kFinal, "no"}).header), Subject::kTensor);
  EXPECT_EQ(subject_of_answer(refusal_of(push, {Refusal::kSendAgain, "no"}).header), Subject::kTensor);
  EXPECT_EQ(subject_of_answer(refusal_of(command, {Refusal::kFinal, "no"}).header), Subject::kCommand);
  EXPECT_EQ(subject_of_answer(refusal_of(push, {Refusal::kRows, "no"}).header), Subject::kRows);
  EXPECT_EQ(subject_of_answer(refusal_of(push, {Refusal::kBlob, "no"}).header), Subject::kBlob);
}

}  // namespace
}  // namespace gradwire::kvstore
