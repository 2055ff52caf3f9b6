#include "transport/nccl_entry.h"

#include <cstring>

#include "transport/messenger.h"

namespace gradwire::transport {
namespace {

std::string worker(std::size_t rank) { return "worker " + std::to_string(rank); }

}  // namespace

// version LF device LF id
std::string to_text(const NcclEntry& entry) {
  return entry.version + '\n' + entry.device + '\n' +
         std::string(reinterpret_cast<const char*>(entry.id.data()), entry.id.size());
}

NcclEntry parse_nccl_entry(std::string_view text, std::uint32_t rank) {
  NcclEntry entry;
  const std::size_t version = text.find('\n');
  const std::size_t device = version == text.npos ? text.npos : text.find('\n', version + 1);
  if (device == text.npos || text.size() - device - 1 != entry.id.size()) {
    throw TransportError("nccl: what " + worker(rank) + " says of itself cannot be read (" +
                         std::to_string(text.size()) +
                         " bytes); every rank must run the same version of gradwire");
  }
  entry.version = text.substr(0, version);
  entry.device = text.substr(version + 1, device - version - 1);
  std::memcpy(entry.id.data(), text.data() + device + 1, entry.id.size());
  return entry;
}

void check_agreement(std::span<const NcclEntry> entries) {
  for (std::size_t b = 1; b < entries.size(); ++b) {
    if (entries[b].version != entries[0].version) {
      throw TransportError("nccl: worker 0 has NCCL " + entries[0].version + ", " + worker(b) + " has NCCL " +
                           entries[b].version + "; install the same on all machines");
    }
    for (std::size_t a = 0; a < b; ++a) {
      if (entries[a].device != entries[b].device) continue;
      throw TransportError(
          "nccl: " + worker(a) + " and " + worker(b) + " have the same GPU (" + entries[a].device +
          "), and NCCL needs one for each rank; start fewer ranks, give each a GPU of its own "
          "(GRADWIRE_DEVICE), or use a store whose ranks may share one, such as 'allreduce'");
    }
  }
}

}  // namespace gradwire::transport
