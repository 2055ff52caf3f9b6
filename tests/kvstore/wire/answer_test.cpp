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
