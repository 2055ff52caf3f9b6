#include "transport/zmq/scheduler_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace gradwire::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

struct Sent {
  SchedulerSender sender{[this](const std::string& peer, Frame frame) {
    texts.emplace_back(peer, payload_text(frame));
    headers.push_back(frame.header);
  }};
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<FrameHeader> headers;
};

TEST(SchedulerSender, FramesHaveTheEpochOfTheirGeneration) {
  Sent sent;
  sent.sender.send("a", Kind::kHeartbeat);
  EXPECT_EQ(sent.headers.at(0).epoch, 0);
  EXPECT_EQ(sent.headers.at(0).sender, (Node{Role::kScheduler, 0}));
  sent.sender.begin_generation();
  const std::uint64_t first = sent.sender.epoch();
  EXPECT_NE(first, 0);
  sent.sender.send("a", Kind::kHeartbeat);
  EXPECT_EQ(sent.headers.at(1).epoch, first);
  sent.sender.begin_generation();
  EXPECT_NE(sent.sender.epoch(), first);
}

TEST(SchedulerSender, ANoticeGoesToAllThatHearNews) {
  Sent sent;
  SchedulerPeers peers;
  peers["gone"].left = true;
  peers["member"];
  peers["spare"].standing = Standing::kSpare;
  peers["waiting"].standing = Standing::kWaiting;
  sent.sender.announce(peers, Kind::kGoodbye, 7, "bye");
  EXPECT_THAT(sent.texts, ElementsAre(Pair("member", "bye"), Pair("spare", "bye")));
  EXPECT_EQ(sent.headers.at(0).key, 7);
  EXPECT_EQ(sent.headers.at(0).step, 1);
}

TEST(SchedulerSender, NoticesThatWereNotHeardAreSentAgainInOrder) {
  Sent sent;
  for (const char* text : {"one", "two", "three"}) sent.sender.announce({}, Kind::kGoodbye, 0, text);
  sent.sender.send_notices("a", 1);
  EXPECT_THAT(sent.texts, ElementsAre(Pair("a", "two"), Pair("a", "three")));
  EXPECT_EQ(sent.headers.at(0).step, 2);
  EXPECT_EQ(sent.headers.at(1).step, 3);
  sent.texts.clear();
  sent.sender.send_notices("a", 99);  // a peer may count what it likes
  sent.sender.begin_generation();     // whose members hear of the change instead
  sent.sender.send_notices("a", 0);
  EXPECT_THAT(sent.texts, IsEmpty());
}

TEST(SchedulerSender, FailuresAndGoodbyesAreMarked) {
  Sent sent;
  sent.sender.send_failure("a", FailureCause::kMembership, "gone");
  sent.sender.acknowledge_goodbye("a");
  EXPECT_EQ(sent.headers.at(0).kind, Kind::kFailure);
  EXPECT_EQ(sent.headers.at(0).key, static_cast<std::uint64_t>(FailureCause::kMembership));
  EXPECT_EQ(sent.headers.at(1).kind, Kind::kGoodbye);
  EXPECT_EQ(sent.headers.at(1).key, static_cast<std::uint64_t>(GoodbyeStage::kAcknowledged));
}

}  // namespace
}  // namespace gradwire::transport
