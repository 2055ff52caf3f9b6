// What the ranks tell each other before they join over NCCL, and what they must agree on.
//
// Threading: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "transport/nccl_port.h"

namespace gradwire::transport {

struct NcclEntry {
  std::string version;  ///< of NCCL
  std::string device;
  NcclPort::Id id{};  ///< rank 0's counts
  bool operator==(const NcclEntry&) const = default;
};

std::string to_text(const NcclEntry& entry);
/// Throws TransportError naming rank for text that to_text() does not write.
NcclEntry parse_nccl_entry(std::string_view text, std::uint32_t rank);

/// Throws TransportError naming the first two ranks that have different versions of NCCL, or one and the same
/// GPU.
void check_agreement(std::span<const NcclEntry> entries);

}  // namespace gradwire::transport
