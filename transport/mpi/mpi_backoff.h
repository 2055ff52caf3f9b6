// Back-off for polling MPI, which offers no blocking wait. The longer nothing came, the longer the next
// sleep. So a message is late by at most a fixed share of the time waited for it, and an idle rank costs
// next to no time.
//
// Threading: none of its own; one thread at a time. Pure: the caller passes the time.
#pragma once

#include <chrono>

namespace gradwire::transport {

class MpiBackoff {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  explicit MpiBackoff(Time now) : moved_(now) {}

  /// Notes that something came, or was sent.
  void moved(Time now) { moved_ = now; }
  /// How long to sleep now. Zero: give way to other threads and ask again. is_transferring: messages are
  /// under way, which move only while MPI is asked.
  Duration pause(Time now, bool is_transferring) const;

 private:
  Time moved_;
};

}  // namespace gradwire::transport
