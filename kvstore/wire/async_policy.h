// AsyncPolicy is the policy of stores in which every push is a round of its own (dist_async): servers apply
// it to the weight when it arrives, whatever the other workers do.
//
// With a staleness bound it is stale synchronous parallel, SSP (Ho et al., "More Effective Distributed ML
// via a Stale Synchronous Parallel Parameter Server", NIPS 2013, section 2). Deviation: there is a clock for
// every weight (aggregate/push_clocks.h).
//
// Threading: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradwire::kvstore {

/// As text, by which workers agree on it and servers get it.
struct AsyncPolicy {
  std::optional<std::uint64_t> staleness_bound;  ///< pushes ahead of the slowest worker; none: any number
  bool operator==(const AsyncPolicy&) const = default;
};

/// "at_once" or "at_once staleness_bound=4": the words on the wire
std::string to_string(const AsyncPolicy& policy);
/// Throws std::invalid_argument for text that to_string() does not write.
AsyncPolicy parse_async_policy(std::string_view text);

}  // namespace gradwire::kvstore
