// Endpoints as text, host names, addresses, interfaces.
//
// Threading: pure functions and system look-ups; a look-up of a name may block.
#pragma once

#include <string>

namespace gradwire::transport {

/// "tcp://host:port", the host without brackets.
struct TcpAddress {
  std::string host;
  std::string port;
};

bool is_ipc(const std::string& endpoint);
/// Throws std::invalid_argument unless endpoint is "tcp://host:port", IPv6 addresses in brackets.
TcpAddress parse_tcp(const std::string& endpoint);
std::string to_endpoint(const TcpAddress& address);
/// The address, or endpoint, as people know it: 10.0.0.1 where the system, which listens for both families on
/// one socket, says ::ffff:10.0.0.1.
std::string without_mapping(const std::string& address);

/// The numeric address of a host: an IPv4 address where it has one, else an IPv6 address; of several, one
/// that other machines can reach. Throws TransportError.
std::string resolve(const std::string& host);
/// Whether the host is an address, and no name.
bool is_numeric(const std::string& host);
/// Whether a numeric address is one of 127.0.0.0/8, or ::1.
bool is_loopback(const std::string& address);
/// Whether a numeric address is 0.0.0.0 or ::, which stand for all of a machine's.
bool is_unspecified(const std::string& address);
/// Whether the name is loopback on every machine: "localhost".
bool names_loopback(const std::string& host);
/// Whether a socket of this machine can listen on a numeric address. Throws TransportError.
bool is_of_this_machine(const std::string& address);
/// The endpoint with its host resolved; ipc and "*" stay as they are.
std::string resolve_endpoint(const std::string& endpoint);
/// The address of a network interface, of the peer's family where there is a choice.
/// Throws std::invalid_argument listing the interfaces there are.
std::string address_of_interface(const std::string& name, const std::string& peer_address);
/// The local address from which packets to a numeric address leave. Throws TransportError.
std::string address_towards(const std::string& peer_address);

/// This host's name: as given, or, where that is empty, what the system says.
std::string host_name(std::string given);
/// Names this machine, network namespace, user and host name, without a space. Processes with equal names
/// can reach each other by ipc. Empty where the system does not report them.
std::string machine_identity(const std::string& host);
/// A new endpoint for this machine alone: an abstract socket, which leaves nothing behind.
std::string local_endpoint();
/// Digits that no other name has.
std::string random_suffix();

}  // namespace gradwire::transport
