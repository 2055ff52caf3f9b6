#include "transport/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>

#include "transport/messenger.h"

namespace gradwire::transport {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype([](addrinfo* list) { freeaddrinfo(list); })>;
using InterfaceList = std::unique_ptr<ifaddrs, decltype([](ifaddrs* list) { freeifaddrs(list); })>;

AddressList look_up(const std::string& host, int socket_type, int flags = 0) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = socket_type;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), "9", &hints, &found);
  if (error != 0) throw TransportError("address: cannot resolve host '" + host + "': " + gai_strerror(error));
  return AddressList(found);
}

std::string numeric(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text.data();
}

socklen_t length_of(const sockaddr* address) {
  return address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

bool is_v6(const std::string& address) { return address.find(':') != std::string::npos; }

bool usable(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return false;
  if (entry.ifa_addr->sa_family == AF_INET) return true;
  if (entry.ifa_addr->sa_family != AF_INET6) return false;
  // A link-local address is reached only with the number of an interface, which is another one on every host.
  return !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr);
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::string host_name(std::string name) {
  if (name.empty()) {
    std::array<char, 256> text{};
    if (gethostname(text.data(), text.size() - 1) == 0) name = text.data();
  }
  std::erase(name, '\n');  // it travels in a line of text
  return name;
}

std::string machine_identity(const std::string& host) {
  // The boot id is equal in all containers of a host, so the network namespace is part of the identity:
  // abstract sockets are isolated by it (network_namespaces(7)).
  const std::string boot = first_line("/proc/sys/kernel/random/boot_id");
  std::error_code error;
  const std::string network = std::filesystem::read_symlink("/proc/self/ns/net", error).string();
  if (boot.empty() || network.empty()) return {};
  std::string identity = boot + "/" + network + "/" + std::to_string(geteuid()) + "/" + host;
  // A space separates the identity from the endpoint in a hello (Hello::local).
  std::ranges::replace(identity, ' ', '_');
  return identity;
}

std::string random_suffix() {
  std::random_device random;
  return std::to_string(random()) + std::to_string(random());
}

std::string local_endpoint() { return "ipc://@gradwire-" + random_suffix(); }

bool is_ipc(const std::string& endpoint) { return endpoint.starts_with("ipc://"); }

TcpAddress parse_tcp(const std::string& endpoint) {
  constexpr std::string_view kScheme = "tcp://";
  const auto bad = [&] {
    return std::invalid_argument(
        "address: '" + endpoint +
        "' is no endpoint; expected tcp://HOST:PORT (IPv6 in brackets) or ipc://PATH");
  };
  // The last one: IPv6 addresses have colons of their own.
  const std::size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with(kScheme) || colon < kScheme.size()) throw bad();
  std::string host = endpoint.substr(kScheme.size(), colon - kScheme.size());
  std::string port = endpoint.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (is_v6(host)) {
    // Without brackets nobody could tell where the address ends and the port begins.
    throw bad();
  }
  // At most five digits, which std::stoi below can read without an exception.
  const bool is_number =
      !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
  if (host.empty() || !(port == "*" || (is_number && std::stoi(port) <= 65535))) throw bad();
  return {std::move(host), std::move(port)};
}

std::string to_endpoint(const TcpAddress& address) {
  const std::string host = is_v6(address.host) ? "[" + address.host + "]" : address.host;
  return "tcp://" + host + ":" + address.port;
}

std::string without_mapping(const std::string& address) {
  if (address.starts_with("tcp://[")) {
    TcpAddress parsed = parse_tcp(address);
    parsed.host = without_mapping(parsed.host);
    return to_endpoint(parsed);
  }
  constexpr std::string_view kMapped = "::ffff:";
  if (!address.starts_with(kMapped)) return address;
  std::string ipv4 = address.substr(kMapped.size());
  in_addr ignored{};
  // "::ffff:1:2" begins alike and is another address.
  return inet_pton(AF_INET, ipv4.c_str(), &ignored) == 1 ? ipv4 : address;
}

std::string resolve(const std::string& host) {
  const AddressList found = look_up(host, SOCK_STREAM);
  std::string chosen;
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    std::string address = numeric(entry->ai_addr, entry->ai_addrlen);
    const bool is_first_v4 = entry->ai_family == AF_INET && is_v6(chosen);
    // A name may have its loopback address first, as Debian's /etc/hosts gives it, and another one behind it.
    const bool is_first_to_reach =
        entry->ai_family == AF_INET && is_loopback(chosen) && !is_loopback(address);
    if (chosen.empty() || is_first_v4 || is_first_to_reach) chosen = std::move(address);
  }
  return chosen;
}

bool is_numeric(const std::string& host) {
  try {
    // With this flag getaddrinfo() asks no name server.
    look_up(host, SOCK_STREAM, AI_NUMERICHOST);
  } catch (const TransportError&) {
    return false;
  }
  return true;
}

bool is_loopback(const std::string& address) {
  in_addr v4{};
  if (inet_pton(AF_INET, without_mapping(address).c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, address.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool is_unspecified(const std::string& address) {
  in_addr v4{};
  if (inet_pton(AF_INET, without_mapping(address).c_str(), &v4) == 1) return v4.s_addr == INADDR_ANY;
  in6_addr v6{};
  return inet_pton(AF_INET6, address.c_str(), &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

bool names_loopback(const std::string& host) {
  return host == "localhost" || host.starts_with("localhost.") || host.ends_with(".localhost") ||
         host == "ip6-localhost" || host == "ip6-loopback";
}

bool is_of_this_machine(const std::string& address) {
  const AddressList own = look_up(address, SOCK_DGRAM, AI_NUMERICHOST);
  // Any free port: the one that was looked up is not asked about.
  if (own->ai_family == AF_INET) reinterpret_cast<sockaddr_in*>(own->ai_addr)->sin_port = 0;
  if (own->ai_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(own->ai_addr)->sin6_port = 0;
  const int fd = socket(own->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw TransportError(std::string("address: socket: ") + std::strerror(errno));
  // The kernel decides, which knows all of 127.0.0.0/8 and addresses that no interface lists. Any other error
  // is for another reason than the address.
  const bool is_own = ::bind(fd, own->ai_addr, own->ai_addrlen) == 0 || errno != EADDRNOTAVAIL;
  close(fd);
  return is_own;
}

std::string resolve_endpoint(const std::string& endpoint) {
  if (is_ipc(endpoint)) return endpoint;
  TcpAddress address = parse_tcp(endpoint);
  if (address.host != "*") address.host = resolve(address.host);
  return to_endpoint(address);
}

std::string address_of_interface(const std::string& name, const std::string& peer_address) {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0)
    throw TransportError(std::string("address: getifaddrs: ") + std::strerror(errno));
  const InterfaceList list(raw);
  std::string chosen;
  std::string known;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (!usable(*entry)) continue;
    const std::string address = numeric(entry->ifa_addr, length_of(entry->ifa_addr));
    // Of all interfaces, for the error: a wrong name is mostly a misspelt one.
    known += (known.empty() ? "" : ", ") + std::string(entry->ifa_name) + " (" + address + ")";
    if (name != entry->ifa_name) continue;
    if (chosen.empty() || (is_v6(chosen) != is_v6(peer_address) && is_v6(address) == is_v6(peer_address))) {
      chosen = address;
    }
  }
  if (chosen.empty()) {
    throw std::invalid_argument("address: there is no interface '" + name +
                                "' with an address; there are: " + known);
  }
  return chosen;
}

std::string address_towards(const std::string& peer_address) {
  const AddressList peer = look_up(peer_address, SOCK_DGRAM);
  const int fd = socket(peer->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw TransportError(std::string("address: socket: ") + std::strerror(errno));
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  // connect() of a datagram socket sends nothing; it asks the routing table for the way out.
  const bool ok = ::connect(fd, peer->ai_addr, peer->ai_addrlen) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) == 0;
  // close() may set errno anew.
  const int error = errno;
  close(fd);
  if (!ok) throw TransportError("address: no route to " + peer_address + ": " + std::strerror(error));
  return numeric(reinterpret_cast<const sockaddr*>(&local), length);
}

}  // namespace gradwire::transport
