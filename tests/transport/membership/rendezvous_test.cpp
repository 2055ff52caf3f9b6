// Rendezvous: ranks, refusals and the words for people.
#include "transport/membership/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

Hello hello_of(Role role, std::optional<std::uint32_t> rank, std::uint64_t pid = 7) {
  Hello hello{.role = role,
              .rank = rank,
              .workers = 2,
              .servers = 2,
              .endpoint = {},
              .local = {},
              .pair = {},
              .host = "host-a",
              .pid = pid,
              .member = {}};
  if (role == Role::kServer) hello.endpoint = "tcp://10.0.0.1:1";
  return hello;
}

std::vector<Node> nodes_of(const Rendezvous& call) {
  std::vector<Node> nodes;
  for (const auto& member : call.members()) nodes.push_back(member.node);
  return nodes;
}

TEST(Rendezvous, NamesWhomItWaitsFor) {
  Rendezvous call(2, 2);
  EXPECT_EQ(call.awaited(), "server 0, server 1, worker 0 and worker 1 (0 of 4 nodes are here)");
  EXPECT_EQ(call.take("a", hello_of(Role::kWorker, 1)), std::nullopt);
  EXPECT_EQ(call.take("b", hello_of(Role::kServer, {})), std::nullopt);
  EXPECT_EQ(call.awaited(), "server 1 and worker 0 (2 of 4 nodes are here)");
  EXPECT_FALSE(call.is_complete());
}

TEST(Rendezvous, WantedRanksAreHonouredAndTheOthersGoByArrival) {
  Rendezvous call(2, 2);
  EXPECT_EQ(call.take("a", hello_of(Role::kWorker, {})), std::nullopt);
  EXPECT_EQ(call.take("b", hello_of(Role::kServer, {})), std::nullopt);
  EXPECT_EQ(call.take("c", hello_of(Role::kWorker, 0)), std::nullopt);
  EXPECT_EQ(call.take("d", hello_of(Role::kServer, {})), std::nullopt);
  EXPECT_TRUE(call.is_complete());
  EXPECT_THAT(nodes_of(call), ElementsAre(Node{Role::kWorker, 1}, Node{Role::kServer, 0},
                                          Node{Role::kWorker, 0}, Node{Role::kServer, 1}));
}

Hello hosted(Role role, const std::string& pair, std::optional<std::uint32_t> rank = {}) {
  Hello hello = hello_of(role, rank);
  hello.pair = pair;
  return hello;
}

TEST(Rendezvous, AHostedServerTakesTheRankOfItsWorker) {
  Rendezvous call(2, 0);
  EXPECT_EQ(call.take("a", hosted(Role::kServer, "x")), std::nullopt);
  EXPECT_EQ(call.awaited(), "worker 0 and worker 1 (0 of 2 workers are here)");
  EXPECT_EQ(call.take("b", hosted(Role::kServer, "y")), std::nullopt);
  EXPECT_EQ(call.take("c", hosted(Role::kWorker, "y")), std::nullopt);
  EXPECT_EQ(call.awaited(), "worker 1 (1 of 2 workers are here)");
  EXPECT_EQ(call.take("d", hosted(Role::kWorker, "x")), std::nullopt);
  EXPECT_TRUE(call.is_complete());
  EXPECT_EQ(call.servers(), 2u);
  EXPECT_THAT(nodes_of(call), ElementsAre(Node{Role::kWorker, 0}, Node{Role::kWorker, 1},
                                          Node{Role::kServer, 1}, Node{Role::kServer, 0}));
  EXPECT_EQ(describe(Node{Role::kServer, 1}, hosted(Role::kServer, "x")), "worker 1 (host-a, pid 7)");
}

TEST(Rendezvous, PairsAndDedicatedServersDoNotMix) {
  Rendezvous call(2, 2);
  EXPECT_EQ(call.take("a", hello_of(Role::kServer, {})), std::nullopt);
  EXPECT_THAT(call.take("b", hosted(Role::kWorker, "x")),
              Optional(HasSubstr("hosts a server of its own, but the job was started with 2 servers")));
  Rendezvous pairs(2, 0);
  EXPECT_EQ(pairs.take("a", hosted(Role::kServer, "x")), std::nullopt);
  EXPECT_THAT(pairs.take("b", hosted(Role::kServer, "x")), Optional(HasSubstr("is here already")));
  EXPECT_THAT(pairs.take("c", hello_of(Role::kWorker, {})),
              Optional(HasSubstr("give every rank the same store")));
}

TEST(Rendezvous, OptionalServersAreSpareOnceAPairIsHere) {
  Rendezvous call(2, 2, true);
  const Hello dedicated = hello_of(Role::kServer, {});
  EXPECT_EQ(call.take("a", dedicated), std::nullopt);
  EXPECT_EQ(call.take("b", dedicated), std::nullopt);
  EXPECT_FALSE(call.is_spare(dedicated));
  for (const std::string pair : {"x", "y"}) {
    EXPECT_EQ(call.take("s" + pair, hosted(Role::kServer, pair)), std::nullopt);
    EXPECT_EQ(call.take("w" + pair, hosted(Role::kWorker, pair)), std::nullopt);
  }
  EXPECT_TRUE(call.is_spare(dedicated));
  EXPECT_EQ(call.take("c", dedicated), std::nullopt);
  EXPECT_TRUE(call.is_complete());
  EXPECT_EQ(call.members().size(), 4u);
}

TEST(Rendezvous, OptionalServersServeWorkersWithoutPairs) {
  Rendezvous call(2, 2, true);
  EXPECT_EQ(call.take("a", hello_of(Role::kWorker, {})), std::nullopt);
  EXPECT_THAT(call.take("b", hosted(Role::kWorker, "x")),
              Optional(HasSubstr("give every rank the same store")));
  EXPECT_EQ(call.take("b", hello_of(Role::kWorker, {})), std::nullopt);
  EXPECT_EQ(call.take("c", hello_of(Role::kServer, {})), std::nullopt);
  EXPECT_EQ(call.take("d", hello_of(Role::kServer, {})), std::nullopt);
  EXPECT_TRUE(call.is_complete());
}

TEST(Rendezvous, ARepeatedHelloChangesNothing) {
  Rendezvous call(2, 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(call.take("a", hello_of(Role::kWorker, {})), std::nullopt);
  EXPECT_EQ(call.members().size(), 1u);
  EXPECT_THAT(call.take("a", hello_of(Role::kWorker, 1)), Optional(HasSubstr("has changed what it says")));
}

TEST(Rendezvous, ADuplicateRankIsRefusedNamingWhoHasIt) {
  Rendezvous call(2, 2);
  EXPECT_EQ(call.take("a", hello_of(Role::kWorker, 1, 7)), std::nullopt);
  EXPECT_THAT(call.take("b", hello_of(Role::kWorker, 1, 8)),
              Optional(AllOf(HasSubstr("worker 1 (host-a, pid 8) is here already, as host-a, pid 7"))));
  EXPECT_EQ(call.take("c", hello_of(Role::kServer, 1)), std::nullopt) << "server 1 is another node";
}

TEST(Rendezvous, AMemberNameIsOfOneProcess) {
  Rendezvous call(2, 2, false, 0, OnFailure::kContinue);
  Hello first = hello_of(Role::kWorker, {}, 7), forked = hello_of(Role::kWorker, {}, 8);
  first.member = forked.member = "m";
  EXPECT_EQ(call.take("a", first), std::nullopt);
  EXPECT_THAT(call.take("b", forked),
              Optional(HasSubstr("a worker (host-a, pid 8) has the member name of host-a, pid 7; give every "
                                 "process its own")));
  Hello hosted_there = hello_of(Role::kServer, 0, 7);
  hosted_there.member = "m";
  EXPECT_EQ(call.take("c", hosted_there), std::nullopt) << "a process may have both roles";
}

TEST(Rendezvous, WhoIsToBeAddedIsToldToComeOnceAllAreHere) {
  Rendezvous call(2, 2, false, 0, OnFailure::kContinue);
  Hello one_more = hello_of(Role::kWorker, {});
  one_more.member = "m";
  one_more.workers = 1;
  EXPECT_THAT(call.take("a", one_more), Optional(HasSubstr("add others once these are here")));
}

TEST(Rendezvous, RanksOutsideTheJobAndSurplusNodesAreRefused) {
  Rendezvous call(2, 2);
  EXPECT_THAT(call.take("a", hello_of(Role::kServer, 2)),
              Optional(HasSubstr("server 2 (host-a, pid 7) is outside a job of 2 servers")));
  EXPECT_EQ(call.take("b", hello_of(Role::kWorker, {})), std::nullopt);
  EXPECT_EQ(call.take("c", hello_of(Role::kWorker, {})), std::nullopt);
  EXPECT_THAT(call.take("d", hello_of(Role::kWorker, {})),
              Optional(HasSubstr("one too many: all 2 workers are here")));
  EXPECT_THAT(call.take("d", hello_of(Role::kWorker, 1)), Optional(HasSubstr("one too many")));
}

TEST(Rendezvous, DisagreementIsRefusedNamingBothValuesAndTheJobGoesOn) {
  Rendezvous call(2, 2);
  Hello wrong = hello_of(Role::kWorker, 0);
  wrong.workers = 3;
  EXPECT_THAT(call.take("a", wrong), Optional(HasSubstr("says workers=3 where the scheduler has workers=2")));
  wrong = hello_of(Role::kWorker, 0);
  wrong.servers = 1;
  EXPECT_THAT(call.take("a", wrong), Optional(HasSubstr("says servers=1 where the scheduler has servers=2")));
  wrong = hello_of(Role::kWorker, 0);
  wrong.version = 9;
  EXPECT_THAT(call.take("a", wrong), Optional(HasSubstr("says version=9 where the scheduler has version=1")));
  wrong = hello_of(Role::kServer, 0);
  wrong.endpoint.clear();
  EXPECT_THAT(call.take("a", wrong), Optional(HasSubstr("gave no endpoint")));
  EXPECT_EQ(call.take("b", hello_of(Role::kWorker, 0)), std::nullopt) << "the right one is still welcome";
}

TEST(Rendezvous, AForgottenNodeMakesRoomForAnother) {
  Rendezvous call(2, 2);
  EXPECT_EQ(call.take("a", hello_of(Role::kWorker, 1)), std::nullopt);
  call.forget("a");
  EXPECT_EQ(call.take("b", hello_of(Role::kWorker, 1)), std::nullopt);
}

TEST(ControlText, HelloHasTheWrittenForm) {
  Hello hello = hello_of(Role::kServer, {}, 1234);
  const std::string text =
      "role=server\nrank=any\nworkers=2\nservers=2\nendpoint=tcp://"
      "10.0.0.1:1\nversion=1\nhost=host-a\npid=1234\n";
  EXPECT_EQ(to_text(hello), text);
  EXPECT_EQ(parse_hello(text), hello);
  hello.rank = 1;
  EXPECT_EQ(parse_hello(to_text(hello)), hello);
}

TEST(ControlText, WhereAServerListensForItsMachineIsOptional) {
  Hello hello = hello_of(Role::kServer, {}, 1234);
  hello.local = "boot/net/host ipc://@gradwire-1";
  EXPECT_THAT(to_text(hello), HasSubstr("\nlocal=boot/net/host ipc://@gradwire-1\n"));
  EXPECT_EQ(parse_hello(to_text(hello)), hello);
  const Roster roster{0, 1, 2, 2, {"tcp://10.0.0.1:1", "tcp://10.0.0.2:1"}, {"", hello.local}};
  EXPECT_EQ(parse_roster(to_text(roster)), roster);
  EXPECT_THROW(parse_roster("rank=0\nepoch=1\nworkers=1\nservers=2\nserver=x\nserver=y\nlocal=z\n"),
               FrameError);
}

TEST(ControlText, RosterHasTheWrittenForm) {
  const Roster roster{1, 18446744073709551615u, 2, 2, {"tcp://10.0.0.1:1", "tcp://[::1]:2"}, {}};
  const std::string text =
      "rank=1\nepoch=18446744073709551615\nworkers=2\nservers=2\nserver=tcp://10.0.0.1:1\nserver=tcp://"
      "[::1]:2\n";
  EXPECT_EQ(to_text(roster), text);
  EXPECT_EQ(parse_roster(text), roster);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const FrameError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ControlText, BadTextIsNamed) {
  EXPECT_THAT(error_of([] { parse_hello("role=worker"); }), HasSubstr("field 'rank' is missing"));
  EXPECT_THAT(error_of([] { parse_hello("role=king\n"); }),
              HasSubstr("role is 'king', expected worker or server"));
  EXPECT_THAT(error_of([] { parse_hello("nonsense"); }), HasSubstr("line 'nonsense' is no key=value"));
  EXPECT_THAT(error_of([] { parse_hello("role=worker\nrank=-1\n"); }),
              HasSubstr("rank is '-1', expected a whole number"));
  EXPECT_THAT(error_of([] { parse_hello("role=worker\nrank=4294967296\n"); }),
              HasSubstr("expected a whole number"));
  EXPECT_THAT(error_of([] { parse_roster("rank=0\nepoch=1\nworkers=1\nservers=2\nserver=x\n"); }),
              HasSubstr("it lists 1 endpoints for 2 servers"));
  EXPECT_THAT(error_of([] { parse_roster("rank=0\nepoch=1\nworkers=1\nservers=0\ngeneration=0\n"); }),
              HasSubstr("generation is 0, expected 1 or more"));
  EXPECT_THAT(error_of([] { parse_stream_hello("stream=2\nstreams=2\n"); }), HasSubstr("stream 2 of 2"));
  EXPECT_THAT(error_of([] { parse_stream_hello("stream=0\nstreams=4000000000\n"); }), HasSubstr("1-64"));
  EXPECT_THAT(error_of([] { parse_hello(std::string(2 << 20, 'x')); }), HasSubstr("2097152 bytes"));
}

TEST(ControlText, BlobsAndRanksRoundTripAndRefuseTruncation) {
  const std::vector<std::string> blobs = {"", std::string("a\0b", 3), "xyz"};
  const std::string packed = pack_blobs(blobs);
  EXPECT_EQ(packed.size(), 3 * 8 + 6u);
  EXPECT_EQ(parse_blobs(packed), blobs);
  EXPECT_THROW(parse_blobs(std::string_view(packed).substr(0, packed.size() - 1)), FrameError);
  EXPECT_THROW(parse_blobs(std::string_view(packed).substr(0, 5)), FrameError);
  EXPECT_EQ(parse_ranks(pack_ranks({3, 70000})), (std::vector<std::uint32_t>{3, 70000}));
  EXPECT_THROW(parse_ranks("abc"), FrameError);
}

}  // namespace
}  // namespace gradwire::transport
