// Endpoints, host names and interfaces.
#include "transport/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/messenger.h"

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Address, MachinesAreToldApartByNameToo) {
  EXPECT_EQ(machine_identity("a"), machine_identity("a"));
  EXPECT_NE(machine_identity("a"), machine_identity("b"));
  EXPECT_EQ(machine_identity("a b").find(' '), std::string::npos);
}

TEST(Address, EndpointsAreParsedAndWritten) {
  EXPECT_EQ(parse_tcp("tcp://10.0.0.1:9091").host, "10.0.0.1");
  EXPECT_EQ(parse_tcp("tcp://[fe80::1]:9091").host, "fe80::1");
  EXPECT_EQ(parse_tcp("tcp://node-3:*").port, "*");
  for (const char* text : {"tcp://10.0.0.1:9091", "tcp://[::1]:0", "tcp://host:*"}) {
    EXPECT_EQ(to_endpoint(parse_tcp(text)), text);
  }
}

TEST(Address, MappedAddressesAreWrittenAsTheIpv4OnesThatTheyAre) {
  EXPECT_EQ(without_mapping("tcp://[::ffff:127.0.0.1]:9091"), "tcp://127.0.0.1:9091");
  EXPECT_EQ(without_mapping("::ffff:10.0.0.1"), "10.0.0.1");
  for (const char* text : {"tcp://127.0.0.1:9091", "tcp://[::1]:9091", "tcp://[::ffff:0:1]:9091", "::1",
                           "ipc:///tmp/[::ffff:1.2.3.4]", "tcp://[::ffff:abcd:1.2.3.4]:1"}) {
    EXPECT_EQ(without_mapping(text), text);
  }
}

TEST(Address, BadEndpointsAreNamedWithWhatIsExpected) {
  for (const char* text : {"", "10.0.0.1:9091", "udp://h:1", "tcp://", "tcp://h", "tcp://h:", "tcp://h:x",
                           "tcp://h:70000", "tcp://:1", "tcp://::1:9091", "tcp://h:123456789012"}) {
    try {
      parse_tcp(text);
      ADD_FAILURE() << text << " was taken";
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(std::string("'") + text + "'"), HasSubstr("expected tcp://HOST:PORT")));
    }
  }
}

TEST(Address, NamesResolveToNumbers) {
  EXPECT_EQ(resolve("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(resolve("::1"), "::1");
  EXPECT_EQ(resolve("localhost"), "127.0.0.1") << "IPv4 where there is a choice";
  EXPECT_EQ(resolve_endpoint("tcp://localhost:5"), "tcp://127.0.0.1:5");
  EXPECT_EQ(resolve_endpoint("tcp://*:5"), "tcp://*:5");
  EXPECT_EQ(resolve_endpoint("ipc:///a/b"), "ipc:///a/b");
  try {
    resolve("no-such-host.invalid");
    ADD_FAILURE();
  } catch (const TransportError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot resolve host 'no-such-host.invalid'"));
  }
}

TEST(Address, AnInterfaceGivesItsAddressAndAWrongOneListsWhatThereIs) {
  EXPECT_EQ(address_of_interface("lo", "127.0.0.1"), "127.0.0.1");
  try {
    address_of_interface("eth77", "127.0.0.1");
    ADD_FAILURE();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("no interface 'eth77'"), HasSubstr("lo (127.0.0.1)")));
  }
}

TEST(Address, WhatKindAnAddressIs) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(is_loopback(address)) << address;
  for (const char* address : {"128.0.0.1", "10.0.0.1", "0.0.0.0", "::", "fe80::1", "node1", ""})
    EXPECT_FALSE(is_loopback(address)) << address;
  for (const char* address : {"0.0.0.0", "::"}) EXPECT_TRUE(is_unspecified(address)) << address;
  for (const char* address : {"127.0.0.1", "::1", "node1", "*"})
    EXPECT_FALSE(is_unspecified(address)) << address;
  for (const char* host : {"10.0.0.1", "::1"}) EXPECT_TRUE(is_numeric(host)) << host;
  for (const char* host : {"localhost", "node-3", "10.0.0.1.example"}) EXPECT_FALSE(is_numeric(host)) << host;
  for (const char* host : {"localhost", "localhost.localdomain", "a.localhost", "ip6-localhost"})
    EXPECT_TRUE(names_loopback(host)) << host;
  for (const char* host : {"node1", "mylocalhost", "127.0.0.1"}) EXPECT_FALSE(names_loopback(host)) << host;
}

TEST(Address, ThisMachinesAddressesAreItsOwn) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "0.0.0.0", "::1"})
    EXPECT_TRUE(is_of_this_machine(address)) << address;
  EXPECT_FALSE(is_of_this_machine("192.0.2.1")) << "of no machine: RFC 5737";
}

}  // namespace
}  // namespace gradwire::transport
