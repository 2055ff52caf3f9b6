#include "transport/zmq/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "transport/messenger.h"

namespace gradwire::transport {
namespace {

// Where the hard limit is 2^30, programs that close every possible descriptor one by one would need minutes.
constexpr rlim_t kMostDescriptors = 1 << 20;
constexpr std::size_t kHardlyAny = 8;

std::size_t limit_now() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<std::size_t>::max();
  return static_cast<std::size_t>(limit.rlim_cur);
}

/// At least so many; all of them where not even the list of them can be opened.
std::size_t in_use() {
  std::error_code error;
  // Counted by listing: stat() of this folder gives the number only from Linux 6.2 on. Without /proc none are
  // assumed.
  const std::filesystem::directory_iterator all("/proc/self/fd", error);
  if (error) return error == std::errc::too_many_files_open ? limit_now() : 0;
  const auto count = std::distance(begin(all), end(all));
  return static_cast<std::size_t>(count) - 1;  // without the list's own
}

std::string state(std::size_t used, std::size_t limit) {
  return "this process has " + std::to_string(used) + " of " + std::to_string(limit) +
         " file descriptors in use; raise its hard limit (ulimit -Hn; LimitNOFILE of a systemd service, "
         "--ulimit "
         "nofile of a container)";
}

}  // namespace

void allow_many_connections() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  // Never lowered: somebody may have raised it above our bound.
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMostDescriptors));
  // A refusal is not looked at: callers count what there is (require_descriptors).
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void require_descriptors(std::size_t count, const std::string& what) {
  allow_many_connections();
  const std::size_t limit = limit_now();
  const std::size_t used = in_use();
  // The first condition keeps the subtraction from wrapping: a limit may be lowered below what is open.
  if (used < limit && limit - used >= count) return;
  throw TransportError(what + " needs " + std::to_string(count) + " more, and " + state(used, limit));
}

std::string descriptor_shortage() {
  const std::size_t limit = limit_now();
  const std::size_t used = in_use();
  return limit > used && limit - used >= kHardlyAny ? std::string() : "; " + state(used, limit);
}

}  // namespace gradwire::transport
