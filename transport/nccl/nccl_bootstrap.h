// What the ranks exchange before they join over NCCL, and what they must agree on.
//
// Threading: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "transport/nccl/nccl_port.h"

namespace gradwire::transport {

/// Whether ranks may use one GPU together. NCCL refuses two ranks with the same GPU on the same host, so each
/// process needs a host identity of its own (NCCL_HOSTID), set before NCCL makes its first communicator.
enum class GpuSharing : std::uint8_t { kRefused, kAllowed };

struct NcclBootstrap {
  std::string version;  ///< of NCCL
  std::string device;
  GpuSharing sharing = GpuSharing::kRefused;
  NcclPort::Id id{};  ///< rank 0's counts
  bool operator==(const NcclBootstrap&) const = default;
};

std::string to_text(const NcclBootstrap& entry);
/// Throws TransportError naming rank for text that to_text() does not write.
NcclBootstrap parse_nccl_bootstrap(std::string_view text, std::uint32_t rank);

/// Throws TransportError naming the first two ranks that have different versions of NCCL, or that use one GPU
/// without both allowing it.
void check_agreement(std::span<const NcclBootstrap> entries);

}  // namespace gradwire::transport
