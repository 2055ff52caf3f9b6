// MpiBackoff says how often to ask MPI whether something has come: it has nothing that a thread could sleep
// on. The longer nothing came, the longer the next sleep, so that what comes is late by a fixed share of the
// time waited for it at most, and an idle rank costs next to no time.
//
// Threading: none of its own; one thread at a time. Pure: the clock is handed in.
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
