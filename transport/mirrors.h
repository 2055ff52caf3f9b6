// Mirrors knows which server takes over for which, in a job in which each has one mirror: the next rank, and
// for the last rank the first.
//
// Threading: one owner. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace gradwire::transport {

/// The server that mirrors this one. Requires server < servers.
constexpr std::uint32_t mirror_of(std::uint32_t server, std::uint32_t servers) {
  return (server + 1) % servers;
}
/// The server that this one mirrors. Requires server < servers.
constexpr std::uint32_t mirrored_by(std::uint32_t server, std::uint32_t servers) {
  return (server + servers - 1) % servers;
}

/// Throws std::invalid_argument, whose text begins with `who`, if that many servers cannot have that many
/// replicas each.
void require_mirrors(const char* who, std::uint32_t servers, std::uint32_t replicas);

class Mirrors {
 public:
  /// Throws as require_mirrors() does.
  Mirrors(std::uint32_t servers, std::uint32_t replicas);

  /// Notes a server's death. Returns the server that takes over, or nothing if its data is lost; fault()
  /// then says why. Requires that it has not died before.
  std::optional<std::uint32_t> lose(std::uint32_t server);
  /// Names the servers whose deaths took the last copy of something; empty while nothing was lost.
  const std::string& fault() const { return fault_; }
  /// How many have died: the number of the job's membership.
  std::uint64_t deaths() const { return heirs_.size(); }

 private:
  std::uint32_t servers_;
  std::map<std::uint32_t, std::uint32_t> heirs_;  ///< of each dead server: the one that has taken over
  std::string fault_;
};

}  // namespace gradwire::transport
