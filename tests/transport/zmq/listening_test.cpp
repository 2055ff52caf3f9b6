// Where nodes listen, and under which endpoints they are published. Names that are loopback on one host only
// need hosts files of several hosts: tests/integration/host_names_test.py.
#include "transport/zmq/listening.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/address.h"
#include "transport/zmq/scheduler.h"

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kElsewhere = "192.0.2.1";  // of no machine: RFC 5737

ZmqOptions by_scheduler(const std::string& endpoint) {
  ZmqOptions options;
  options.scheduler = endpoint;
  return options;
}

TEST(Listening, ASchedulerListensOnTheAddressThatItIsGiven) {
  EXPECT_THAT(scheduler_listening(by_scheduler("tcp://127.0.0.1:90")).endpoints,
              ElementsAre("tcp://127.0.0.1:90"));
  EXPECT_THAT(scheduler_listening(by_scheduler("tcp://localhost:90")).endpoints,
              ElementsAre("tcp://127.0.0.1:90"));
  EXPECT_THAT(scheduler_listening(by_scheduler("tcp://*:90")).endpoints, ElementsAre("tcp://*:90"));
  EXPECT_THAT(scheduler_listening(by_scheduler("ipc:///tmp/x")).endpoints, ElementsAre("ipc:///tmp/x"));
  ZmqOptions options = by_scheduler("tcp://127.0.0.1:0");
  options.interface = "eth77";  // of servers: it has an address that serves
  EXPECT_EQ(scheduler_listening(options).note, "");
}

TEST(Listening, WhereItsAddressIsNoneOfThisMachineASchedulerListensOnAllInterfaces) {
  const Listening everywhere = scheduler_listening(by_scheduler("tcp://192.0.2.1:90"));
  EXPECT_THAT(everywhere.endpoints, ElementsAre("tcp://*:90"));
  EXPECT_EQ(everywhere.host, kElsewhere) << "others know it by that";
  EXPECT_EQ(everywhere.note, "192.0.2.1 is no address of this machine, so it listens on all interfaces");

  ZmqOptions options = by_scheduler("tcp://192.0.2.1:90");
  options.interface = "lo";
  EXPECT_THAT(scheduler_listening(options).endpoints, ElementsAre("tcp://127.0.0.1:90"));
  options.bind_host = "127.0.0.9";
  EXPECT_THAT(scheduler_listening(options).endpoints, ElementsAre("tcp://127.0.0.9:90"));
  EXPECT_THAT(scheduler_listening(options).note, HasSubstr("so it listens on 127.0.0.9"));
}

TEST(Listening, ANodeBesideItsSchedulerJoinsItOverLoopbackAndListensAsItDoes) {
  ZmqOptions options = by_scheduler("tcp://192.0.2.1:0");
  options.workers = 1;
  const Scheduler scheduler(options);
  EXPECT_EQ(scheduler.address(), "*");
  EXPECT_THAT(scheduler.endpoint(), StartsWith("tcp://192.0.2.1:"));
  const ZmqOptions node = scheduler.beside(options);
  EXPECT_EQ(node.scheduler, to_endpoint({"127.0.0.1", parse_tcp(scheduler.endpoint()).port}));
  EXPECT_EQ(node.bind_host, "*");
  const Listening own = server_listening(node);
  EXPECT_THAT(own.endpoints, ElementsAre("tcp://*:*"));
  EXPECT_EQ(own.host, "127.0.0.1") << "which to other machines is where the scheduler is";
  options.bind_host = "127.0.0.9";
  const Scheduler bound(options);
  EXPECT_EQ(bound.address(), "127.0.0.9");
  EXPECT_THAT(bound.beside(options).scheduler, StartsWith("tcp://127.0.0.9:"));
  EXPECT_EQ(bound.beside(options).bind_host, "127.0.0.9");
}

TEST(Listening, AServerListensWhereTheSchedulerIsReached) {
  const auto endpoint = [](const ZmqOptions& options) { return server_listening(options).endpoints.front(); };
  EXPECT_EQ(endpoint(by_scheduler("tcp://127.0.0.1:9091")), "tcp://127.0.0.1:*");
  ZmqOptions options = by_scheduler("tcp://[::1]:9091");
  EXPECT_EQ(endpoint(options), "tcp://[::1]:*");
  options.interface = "lo";
  EXPECT_THAT(endpoint(options), testing::AnyOf("tcp://[::1]:*", "tcp://127.0.0.1:*"));
  options.bind_host = "localhost";
  EXPECT_EQ(endpoint(options), "tcp://127.0.0.1:*");
  EXPECT_EQ(endpoint(by_scheduler("tcp://0.0.0.0:9091")), "tcp://*:*") << "as the scheduler beside it";
  EXPECT_THAT(endpoint(by_scheduler("ipc:///tmp/x")), StartsWith("ipc:///tmp/x.server-"));
}

TEST(Listening, EveryEndpointGetsThePortOfTheFirst) {
  const ZmqContext context;
  ZmqSocket socket(context, ZMQ_ROUTER, kNoLimit);
  const std::string published =
      start_listening(socket, {{"tcp://127.0.0.1:*", "tcp://127.0.0.9:*"}, "node1", ""});
  EXPECT_THAT(published, StartsWith("tcp://node1:"));
  ZmqSocket other(context, ZMQ_ROUTER, kNoLimit);
  EXPECT_THROW(other.bind(to_endpoint({"127.0.0.9", parse_tcp(published).port})), TransportError);
}

TEST(Listening, ALoopbackEndpointIsWhereTheSchedulerIs) {
  EXPECT_EQ(as_reached("tcp://127.0.0.1:5", "10.0.0.1"), "tcp://10.0.0.1:5");
  EXPECT_EQ(as_reached("tcp://[::1]:5", "fd00::1"), "tcp://[fd00::1]:5");
  EXPECT_EQ(as_reached("tcp://127.0.0.1:5", "127.0.1.1"), "tcp://127.0.0.1:5") << "on the same machine";
  EXPECT_EQ(as_reached("tcp://10.0.0.2:5", "10.0.0.1"), "tcp://10.0.0.2:5");
  EXPECT_EQ(as_reached("tcp://127.0.0.1:5", ""), "tcp://127.0.0.1:5") << "over ipc";
  EXPECT_EQ(as_reached("ipc://@x", "10.0.0.1"), "ipc://@x");
}

}  // namespace
}  // namespace gradwire::transport
