#include "transport/membership/liveness.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace gradwire::transport {
namespace {

/// "5.0 s"
std::string to_tenths(std::chrono::steady_clock::duration time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", std::chrono::duration<double>(time).count());
  return text.data();
}

}  // namespace

std::chrono::milliseconds Liveness::beat() const {
  using std::chrono::milliseconds;
  // A tenth, so that several beats may be lost before a node counts as dead. At most half a second, because a
  // closed connection is judged by beats (return_time), and a killed process is to be found soon.
  return std::clamp(timeout_ / 10, milliseconds(1), milliseconds(500));
}

// A reconnect takes a tenth of a second and the next beat half a second: three beats are ample.
std::chrono::milliseconds Liveness::return_time() const { return 3 * beat(); }

// A frame also cancels a closed connection: it came on a new one, or the event was of another node's old
// descriptor.
void Liveness::heard(const std::string& id, Time now) { watched_[id] = {now, std::nullopt}; }

void Liveness::disconnected(const std::string& id, Time now) {
  const auto found = watched_.find(id);
  // The first event counts: a connection that is tried again and again must not put off the verdict.
  if (found != watched_.end() && !found->second.disconnected) found->second.disconnected = now;
}

std::optional<Liveness::Lost> Liveness::check(Time now) {
  const auto asleep = checked_ ? now - *checked_ : Time::duration::zero();
  checked_ = now;
  // Callers check at every beat, at most a tenth of the timeout apart. A gap of half of it means that this
  // process stood still: a suspended machine, a debugger. Heartbeats of that time are still in the socket, or
  // could not be sent.
  if (asleep > timeout_ / 2) {
    for (auto& [id, watched] : watched_) {
      watched.heard += asleep;
      // The event may have been read before the sleep, and the frame of the new connection waits unread
      // behind it.
      if (watched.disconnected) *watched.disconnected += asleep;
    }
  }
  for (const auto& [id, watched] : watched_) {
    // Before the silence, since it is the more exact cause where both hold.
    if (watched.disconnected && now - *watched.disconnected >= return_time()) {
      return Lost{id, "closed its connection and did not come back within " + to_tenths(return_time())};
    }
    if (now - watched.heard >= timeout_) {
      const std::string limit = "GRADWIRE_LIVENESS_TIMEOUT is " + to_tenths(timeout_);
      return Lost{id, "sent no heartbeat for " + to_tenths(now - watched.heard) + " (" + limit + ")"};
    }
  }
  return std::nullopt;
}

}  // namespace gradwire::transport
