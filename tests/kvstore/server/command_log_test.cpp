#include "kvstore/server/command_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kvstore/requests.h"

namespace gradwire::kvstore {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr std::uint64_t kBegin = 7 * kCommandsOfOneWorker;

transport::FrameHeader numbered(std::uint64_t number) {
  transport::FrameHeader header = command("").header;
  header.key = number;
  return header;
}

transport::Frame answer(std::uint64_t number) {
  transport::Frame frame{numbered(number), {}};
  frame.header.kind = transport::Kind::kAck;
  return frame;
}

/// Whether a command is carried out; its answer is then kept.
bool carries_out(CommandLog& commands, std::uint32_t worker, std::uint64_t number, Answers& answers) {
  if (!commands.admits(worker, numbered(number), answers)) return false;
  commands.keep(worker, answer(number));
  return true;
}

TEST(CommandLog, AreCarriedOutOnce) {
  CommandLog commands(2);
  Answers answers;
  EXPECT_TRUE(carries_out(commands, 0, kBegin + 1, answers));
  EXPECT_THAT(answers, IsEmpty());
  EXPECT_FALSE(carries_out(commands, 0, kBegin + 1, answers));
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, 0U);
  EXPECT_EQ(answers[0].frame.header, answer(kBegin + 1).header);
}

TEST(CommandLog, OneThatComesTooEarlyIsAsIfLost) {
  CommandLog commands(1);
  Answers answers;
  EXPECT_TRUE(carries_out(commands, 0, kBegin + 1, answers));
  EXPECT_FALSE(carries_out(commands, 0, kBegin + 3, answers));
  EXPECT_TRUE(carries_out(commands, 0, kBegin + 2, answers));
  EXPECT_TRUE(carries_out(commands, 0, kBegin + 3, answers));
  EXPECT_THAT(answers, IsEmpty());
}

TEST(CommandLog, AnOldOneIsAnsweredThoughOthersFollowed) {
  CommandLog commands(1);
  Answers answers;
  for (std::uint64_t n = 1; n <= 3; ++n) EXPECT_TRUE(carries_out(commands, 0, kBegin + n, answers));
  EXPECT_FALSE(carries_out(commands, 0, kBegin + 1, answers));
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].frame.header.key, kBegin + 1);
}

TEST(CommandLog, OfWorkersAreCountedApart) {
  CommandLog commands(2);
  Answers answers;
  EXPECT_TRUE(carries_out(commands, 0, kBegin + 1, answers));
  EXPECT_TRUE(carries_out(commands, 1, kBegin + 1, answers));
  EXPECT_FALSE(carries_out(commands, 2, kBegin + 1, answers));
}

TEST(CommandLog, WhoTakesAWorkersPlaceBeginsAnew) {
  CommandLog commands(1);
  Answers answers;
  EXPECT_TRUE(carries_out(commands, 0, kBegin + 1, answers));
  EXPECT_TRUE(carries_out(commands, 0, kBegin + kCommandsOfOneWorker + 1, answers));
  EXPECT_FALSE(carries_out(commands, 0, kBegin + 2, answers)) << "its predecessor's, late";
  EXPECT_TRUE(carries_out(commands, 0, kBegin + kCommandsOfOneWorker + 2, answers));
}

TEST(CommandLog, MayBeNumberedFromOneOn) {
  CommandLog commands(1);
  Answers answers;
  EXPECT_TRUE(carries_out(commands, 0, 1, answers));
  EXPECT_TRUE(carries_out(commands, 0, 2, answers));
  EXPECT_FALSE(carries_out(commands, 0, 0, answers));
}

}  // namespace
}  // namespace gradwire::kvstore
