#include "transport/mirrors.h"

#include <stdexcept>

#include "transport/frame.h"

namespace gradwire::transport {
namespace {

std::string name(std::uint32_t server) { return to_string(Node{Role::kServer, server}); }

}  // namespace

void require_mirrors(const char* who, std::uint32_t servers, std::uint32_t replicas) {
  if (replicas == 0) return;
  const std::string given = std::string(who) + ": replicas=" + std::to_string(replicas);
  if (replicas > 1) {
    throw std::invalid_argument(given +
                                " given, expected 0, or 1: every server is mirrored on the one after it");
  }
  if (servers < 2) {
    throw std::invalid_argument(
        given + " with servers=" + std::to_string(servers) +
        ": a server is mirrored on another one; start at least 2 servers of their own "
        "(-s 2), or leave replicas out");
  }
}

Mirrors::Mirrors(std::uint32_t servers, std::uint32_t replicas) : servers_(servers) {
  require_mirrors("Mirrors", servers, replicas);
}

std::optional<std::uint32_t> Mirrors::lose(std::uint32_t server) {
  const std::uint32_t mirror = mirror_of(server, servers_);
  const std::uint32_t mirrored = mirrored_by(server, servers_);
  // Either this server was the last copy of what it mirrors, or its own mirror is dead and it was the last
  // copy of what it keeps.
  if (heirs_.contains(mirrored) || heirs_.contains(mirror)) {
    const bool kept_for_other = heirs_.contains(mirrored);
    fault_ = name(kept_for_other ? mirrored : mirror) + " and " + name(server) +
             " have both died, and with them the only two copies of what " +
             name(kept_for_other ? mirrored : server) + " kept; start the job again from its last checkpoint";
    return std::nullopt;
  }
  heirs_[server] = mirror;
  return mirror;
}

}  // namespace gradwire::transport
