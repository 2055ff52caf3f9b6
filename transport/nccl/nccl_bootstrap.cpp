#include "transport/nccl/nccl_bootstrap.h"

#include <algorithm>
#include <cstring>

#include "transport/messenger.h"

namespace gradwire::transport {
namespace {

constexpr const char* kOwn = "own";
constexpr const char* kShared = "shared";

std::string worker(std::size_t rank) { return "worker " + std::to_string(rank); }

}  // namespace

// version LF device LF "own" or "shared" LF id
std::string to_text(const NcclBootstrap& entry) {
  const bool shared = entry.sharing == GpuSharing::kAllowed;
  return entry.version + '\n' + entry.device + '\n' + (shared ? kShared : kOwn) + '\n' +
         std::string(reinterpret_cast<const char*>(entry.id.data()), entry.id.size());
}

NcclBootstrap parse_nccl_bootstrap(std::string_view text, std::uint32_t rank) {
  NcclBootstrap entry;
  std::string_view rest = text;
  const auto take_line = [&rest] {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    // A text without enough lines leaves nothing, and the checks below refuse it.
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return line;
  };
  entry.version = take_line();
  entry.device = take_line();
  const std::string_view sharing = take_line();
  // The id is bytes and may have newlines, so it comes last and has a length instead of an end.
  if ((sharing != kOwn && sharing != kShared) || rest.size() != entry.id.size()) {
    throw TransportError("nccl: the description that " + worker(rank) + " sent cannot be read (" +
                         std::to_string(text.size()) +
                         " bytes); every rank must run the same version of gradwire");
  }
  entry.sharing = sharing == kShared ? GpuSharing::kAllowed : GpuSharing::kRefused;
  std::memcpy(entry.id.data(), rest.data(), rest.size());
  return entry;
}

void check_agreement(std::span<const NcclBootstrap> entries) {
  for (std::size_t b = 1; b < entries.size(); ++b) {
    if (entries[b].version != entries[0].version) {
      throw TransportError("nccl: worker 0 has NCCL " + entries[0].version + ", " + worker(b) + " has NCCL " +
                           entries[b].version + "; install the same on all machines");
    }
    // Every pair: NCCL itself would report two ranks of one GPU as an invalid usage, and name neither.
    for (std::size_t a = 0; a < b; ++a) {
      if (entries[a].device != entries[b].device) continue;
      // Both, because each process needs a host id of its own before its NCCL is loaded.
      if (entries[a].sharing == GpuSharing::kAllowed && entries[b].sharing == GpuSharing::kAllowed) continue;
      throw TransportError(
          "nccl: " + worker(a) + " and " + worker(b) + " have the same GPU (" + entries[a].device +
          "), and NCCL expects one for each rank; start fewer ranks, give each a GPU of its own "
          "(GRADWIRE_DEVICE), set GRADWIRE_NCCL_SHARE_GPU=on for every rank to let them share it, or use the "
          "store 'allreduce', whose ranks may always share one");
    }
  }
}

}  // namespace gradwire::transport
