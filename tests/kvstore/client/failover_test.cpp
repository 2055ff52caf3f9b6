#include "kvstore/client/failover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using transport::FrameHeader;
using transport::Node;
using transport::Role;

constexpr Node server(std::uint32_t rank) { return {Role::kServer, rank}; }

FrameHeader for_server(std::uint32_t rank, Role role = Role::kServer) {
  FrameHeader header;
  header.on_behalf = Node{role, rank};
  return header;
}

TEST(Failover, EachSpeaksForItselfWhileItLives) {
  const Failover failover(Role::kServer);
  EXPECT_EQ(failover.speaker_of(server(1), {}), server(1));
  EXPECT_EQ(failover.speaker_of({Role::kScheduler, 0}, {}), (Node{Role::kScheduler, 0}));
  EXPECT_EQ(failover.speaker_of(server(1), for_server(0)), std::nullopt) << "server 0 lives";
}

TEST(Failover, AMirrorAloneSpeaksForTheDead) {
  Failover failover(Role::kServer);
  EXPECT_TRUE(failover.replace(0, 1));
  EXPECT_FALSE(failover.replace(0, 1)) << "it is known";
  EXPECT_EQ(failover.speaker_of(server(1), for_server(0)), server(0));
  EXPECT_EQ(failover.speaker_of(server(1), {}), server(1)) << "its own word";
  EXPECT_EQ(failover.speaker_of(server(2), for_server(0)), std::nullopt) << "another's mirror";
  EXPECT_EQ(failover.speaker_of(server(0), {}), std::nullopt) << "last words of the dead";
  EXPECT_EQ(failover.speaker_of(server(1), for_server(0, Role::kWorker)), std::nullopt);
  EXPECT_EQ(failover.speaker_of({Role::kWorker, 1}, for_server(0)), std::nullopt);
  EXPECT_THAT(failover.replaced(), ElementsAre(Pair(0, 1)));
  EXPECT_THAT(failover.served_by(1), ElementsAre(0));
  EXPECT_THAT(failover.served_by(0), IsEmpty());
}

TEST(Failover, SaysWhoHasLeftAndWhy) {
  Failover failover(Role::kWorker);  // every worker hosts a server
  EXPECT_FALSE(failover.has_left(3));
  failover.leave(3, "");
  failover.leave(4, "ValueError: no");
  failover.leave(4, "later");
  EXPECT_TRUE(failover.has_left(3));
  EXPECT_EQ(failover.describe(3), "worker 3 left the job while this worker still needs it");
  EXPECT_EQ(failover.describe(4), "worker 4 failed: ValueError: no; see its traceback");
}

}  // namespace
}  // namespace gradwire::kvstore
