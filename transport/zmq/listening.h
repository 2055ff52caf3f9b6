// Where a node listens, and the endpoint under which others reach it.
//
// A host's name may be a loopback address on that very host (the installers of Debian and Ubuntu write
// "127.0.1.1 NAME" into /etc/hosts), or an address of another machine that forwards to it. The other hosts
// know an address that works, this one does not. A node that is known by such a name therefore listens on all
// interfaces. A server that reaches the scheduler over loopback is published with a loopback address: to
// other hosts it is where the scheduler is (as_reached).
//
// Threading: pure functions and system look-ups; a look-up of a name may block.
#pragma once

#include <string>
#include <vector>

#include "transport/zmq/zmq_messenger.h"
#include "transport/zmq/zmq_socket.h"

namespace gradwire::transport {

struct Listening {
  /// Endpoints to bind, numeric or "*"; all get the port of the first.
  std::vector<std::string> endpoints;
  std::string host;  ///< to be published in the place of the first one's; empty: that
  std::string note;  ///< for people: why it does not listen where it was asked to; empty: it does
};

/// Where the scheduler listens. On the address that options.scheduler gives, if that is this machine's, and a
/// name gives no loopback address (other than "localhost"). Else at options.bind_host, or at the address of
/// options.interface, or on all interfaces. Throws TransportError, or std::invalid_argument for what is no
/// endpoint.
Listening scheduler_listening(const ZmqOptions& options);

/// Where a server listens, its port left to the system: at options.bind_host ("*": on all interfaces), or at
/// the address of options.interface, or at the address from which the scheduler is reached: on all interfaces
/// where that is a loopback address that others may know otherwise. Throws as scheduler_listening().
Listening server_listening(const ZmqOptions& options);

/// Binds all endpoints and returns the one to publish, its port filled in. Throws TransportError.
std::string start_listening(ZmqSocket& socket, const Listening& at);

/// A server's endpoint as this node reaches it: a loopback address is the scheduler's machine, which this
/// node knows by scheduler_address (numeric, by which it reaches the scheduler).
std::string as_reached(const std::string& endpoint, const std::string& scheduler_address);

}  // namespace gradwire::transport
