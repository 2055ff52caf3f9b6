#include "transport/zmq/listening.h"

#include "transport/address.h"

namespace gradwire::transport {
namespace {

const std::string kEverywhere = "*";

std::string at(const std::string& host, const std::string& port) { return to_endpoint({host, port}); }

bool is_everywhere(const std::string& host) { return host == kEverywhere || is_unspecified(host); }

/// Whether other hosts may know the host by another address than this one, which found a loopback address.
bool may_be_known_otherwise(const std::string& host, const std::string& address) {
  // A number means the same to everybody, and "localhost" is asked for on purpose. Any other name may have
  // another address in the eyes of other hosts.
  return is_loopback(address) && !is_numeric(host) && !names_loopback(host);
}

/// The address from which a host is reached, which is this numeric one here.
std::string own_address(const std::string& host, const std::string& address) {
  try {
    return address_towards(address);
  } catch (const TransportError& error) {
    // The error itself names an address that the user never wrote.
    throw TransportError("scheduler's host " + host + ": " + error.what());
  }
}

/// The address that was asked for; empty: none was.
std::string wanted_address(const ZmqOptions& options, const std::string& peer_address) {
  if (!options.bind_host.empty()) {
    const std::string& host = options.bind_host;
    const std::string address = is_everywhere(host) ? kEverywhere : resolve(host);
    // The address of a name that is loopback here would be reached by this host alone.
    return is_everywhere(address) || may_be_known_otherwise(host, address) ? kEverywhere : address;
  }
  if (!options.interface.empty()) return address_of_interface(options.interface, peer_address);
  return {};
}

}  // namespace

Listening scheduler_listening(const ZmqOptions& options) {
  if (is_ipc(options.scheduler)) return {{options.scheduler}, {}, {}};
  const auto [host, port] = parse_tcp(options.scheduler);
  const std::string address = host == kEverywhere ? host : resolve(host);
  const bool is_here = is_everywhere(address) || is_of_this_machine(address);
  // The ordinary case: what was asked for is an address of this machine, and others know it by the same.
  if (is_here && !may_be_known_otherwise(host, address)) return {{at(address, port)}, {}, {}};

  Listening listening;
  // Published as it was given, because the other hosts resolve it, and rightly.
  listening.host = host;
  const std::string wanted = wanted_address(options, address);
  listening.endpoints = {at(wanted.empty() ? kEverywhere : wanted, port)};
  if (is_here && !wanted.empty() && wanted != kEverywhere && wanted != address)
    listening.endpoints.push_back(at(address, port));  // for those of this host, who know it by no other
  const std::string fact = host == address ? address + " is" : host + " is " + address + " here,";
  listening.note = fact + (is_here ? " loopback" : " no address of this machine") + ", so it listens on " +
                   (wanted.empty() ? "all interfaces" : wanted);
  return listening;
}

Listening server_listening(const ZmqOptions& options) {
  const bool over_ipc = is_ipc(options.scheduler);
  // A job over local sockets alone: the server listens beside the scheduler's file, under a name of its own.
  if (over_ipc && options.bind_host.empty() && options.interface.empty())
    return {{options.scheduler + ".server-" + random_suffix()}, {}, {}};
  const std::string host = over_ipc ? std::string() : parse_tcp(options.scheduler).host;
  const std::string scheduler = over_ipc ? std::string() : resolve(host);
  const std::string wanted = wanted_address(options, scheduler);
  if (!wanted.empty() && (wanted != kEverywhere || over_ipc)) return {{at(wanted, "*")}, {}, {}};
  const std::string own = own_address(host, scheduler);
  // The address towards the scheduler is published even where the socket listens everywhere: * reaches
  // nobody.
  const bool everywhere =
      wanted == kEverywhere || is_everywhere(scheduler) || may_be_known_otherwise(host, own);
  return {{at(everywhere ? kEverywhere : own, "*")}, own, {}};
}

std::string start_listening(ZmqSocket& socket, const Listening& listening) {
  const std::string bound = socket.bind(listening.endpoints.front());
  if (is_ipc(bound)) return bound;
  const std::string port = parse_tcp(bound).port;
  // The port that the system chose for the first, since only one is published.
  for (std::size_t i = 1; i < listening.endpoints.size(); ++i)
    socket.bind(at(parse_tcp(listening.endpoints[i]).host, port));
  return listening.host.empty() ? bound : at(listening.host, port);
}

std::string as_reached(const std::string& endpoint, const std::string& scheduler_address) {
  // A node that reaches the scheduler over loopback is on its machine, where a loopback address is right.
  if (is_ipc(endpoint) || scheduler_address.empty() || is_loopback(scheduler_address)) return endpoint;
  const auto [host, port] = parse_tcp(endpoint);
  return is_loopback(host) ? at(scheduler_address, port) : endpoint;
}

}  // namespace gradwire::transport
