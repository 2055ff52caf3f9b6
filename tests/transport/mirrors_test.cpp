#include "transport/mirrors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "transport/membership/control.h"

namespace gradwire::transport {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Mirrors, EachServerIsMirroredByTheNext) {
  EXPECT_EQ(mirror_of(0, 3), 1U);
  EXPECT_EQ(mirror_of(2, 3), 0U);
  for (std::uint32_t server = 0; server < 5; ++server)
    EXPECT_EQ(mirrored_by(mirror_of(server, 5), 5), server);
}

TEST(Mirrors, OneOfTwoMayDie) {
  Mirrors mirrors(2, 1);
  EXPECT_EQ(mirrors.lose(0), 1U);
  EXPECT_EQ(mirrors.deaths(), 1U);
  EXPECT_EQ(mirrors.lose(1), std::nullopt);
  EXPECT_THAT(mirrors.fault(), AllOf(HasSubstr("server 0"), HasSubstr("server 1"), HasSubstr("checkpoint")));
}

TEST(Mirrors, WhoServesForAnotherIsTheLastCopy) {
  Mirrors mirrors(4, 1);
  EXPECT_EQ(mirrors.lose(1), 2U);
  EXPECT_EQ(mirrors.lose(3), 0U);  // shares no copy with server 1
  EXPECT_EQ(mirrors.lose(2), std::nullopt);
  EXPECT_THAT(mirrors.fault(), HasSubstr("server 1 and server 2 have both died"));
}

TEST(Mirrors, WhoseMirrorHasDiedIsTheLastCopy) {
  Mirrors mirrors(3, 1);
  EXPECT_EQ(mirrors.lose(1), 2U);
  EXPECT_EQ(mirrors.lose(0), std::nullopt);
  EXPECT_THAT(mirrors.fault(), AllOf(HasSubstr("server 1 and server 0"), HasSubstr("of what server 0 kept")));
}

TEST(Mirrors, TooFewServersAreToldWhatToDo) {
  EXPECT_NO_THROW(require_mirrors("here", 1, 0));
  EXPECT_THROW(require_mirrors("here", 3, 2), std::invalid_argument);
  try {
    require_mirrors("here", 1, 1);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("here: replicas=1 with servers=1"), HasSubstr("-s 2")));
  }
}

TEST(Mirrors, ADepartureAndReplicasAreTexts) {
  EXPECT_EQ(to_text(Departure{2, 3}), "server=2\nmirror=3\n");
  EXPECT_EQ(parse_departure("mirror=3\nserver=2\n"), (Departure{2, 3}));
  EXPECT_THROW(parse_departure("server=2\n"), FrameError);
  Roster roster{1, 7, 2, 2, {"tcp://a:1", "tcp://b:1"}, {}, 1};
  EXPECT_EQ(parse_roster(to_text(roster)), roster);
  Hello hello;
  hello.role = Role::kServer;
  hello.workers = hello.servers = 2;
  hello.replicas = 1;
  EXPECT_EQ(parse_hello(to_text(hello)), hello);
}

TEST(Mirrors, AHeaderSaysOnWhoseBehalf) {
  FrameHeader header;
  header.kind = Kind::kPush;
  header.sender = {Role::kServer, 1};
  header.on_behalf = Node{Role::kWorker, 5};
  header.number = 0x0102030405060708;
  const HeaderBytes bytes = encode_header(header, {});
  EXPECT_EQ(std::to_integer<int>(bytes[100]), 5);
  EXPECT_EQ(std::to_integer<int>(bytes[103]), 3);  // a worker
  EXPECT_EQ(std::to_integer<int>(bytes[104]), 8);  // little endian
  EXPECT_EQ(decode_header(bytes, {}), header);
}

}  // namespace
}  // namespace gradwire::transport
