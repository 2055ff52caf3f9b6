#include "transport/mpi/mpi_backoff.h"

#include <algorithm>

namespace gradwire::transport {
namespace {

using std::chrono::microseconds;

// Measured: transport/README.md ("Why it is like this").
constexpr microseconds kAwake{100};              // after the last message no sleep at all: an answer is near
constexpr int kShare = 16;                       // a sleep is this part of the time waited so far
constexpr microseconds kLongestInTransfer{100};  // less than what a socket's buffers hold at 10 Gbit
constexpr microseconds kLongest{1000};

}  // namespace

MpiBackoff::Duration MpiBackoff::pause(Time now, bool is_transferring) const {
  const Duration waited = now - moved_;
  // Linux ends a sleep up to 50 us late (timer slack, prctl(2)), which is several round trips.
  if (waited < kAwake) return Duration::zero();
  return std::min<Duration>(waited / kShare, is_transferring ? kLongestInTransfer : kLongest);
}

}  // namespace gradwire::transport
