#include "transport/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace gradwire::transport {
namespace {

// Where the hard limit is 2^30, programs that close every possible descriptor one by one would need minutes.
constexpr rlim_t kMostDescriptors = 1 << 20;

}  // namespace

void allow_many_connections() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMostDescriptors));
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace gradwire::transport
