// Names of nodes for people, and which node may send what to which.
//
// Threading: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transport/messenger.h"

namespace gradwire::transport {

/// "worker 0, worker 1 and server 2"; nothing for none.
std::string list_nodes(const std::vector<Node>& nodes);
std::string list_workers(const std::vector<std::uint32_t>& ranks);

/// "0.7 s", "60 s"
std::string in_seconds(std::chrono::milliseconds time);

/// Throws std::invalid_argument unless self may send these frames to that node: workers to servers, servers
/// to workers, data-plane kinds only.
void check_route(Node self, const World& world, Node to, std::span<const Frame> frames);
/// Throws std::invalid_argument unless self is a worker and name has no NUL (which ends it on the wire).
void check_exchange(Node self, std::string_view name);

/// "exchange 3 ('barrier') has waited 60 s for worker 1"
std::string exchange_wait_text(std::uint64_t sequence, std::string_view name,
                               const std::vector<std::uint32_t>& missing, std::chrono::milliseconds waited);
/// "exchange 3 ('barrier'): worker 1 did not come within 1800000 ms"
std::string exchange_timeout_text(std::uint64_t sequence, std::string_view name, const std::string& who,
                                  std::chrono::milliseconds timeout);

}  // namespace gradwire::transport
