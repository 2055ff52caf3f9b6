// ClockProbe measures the offset of this process's clock from the servers', as NTP does: it asks for the
// time there several times, and uses the answer with the shortest round trip.
//
// Threading: read() by one thread at a time; take() from any thread, also at the same time.
// Failure: a server that does not answer in time, or a job that has failed, leaves no reading.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

#include "kvstore/trace/trace.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

/// The answer to a kClock of `from`: what `now` is.
transport::Frame tell_time(const transport::FrameHeader& asked, TraceClock::time_point now);

class ClockProbe {
 public:
  explicit ClockProbe(transport::Messenger& messenger) : messenger_(messenger) {}

  /// Adds a reading of every server's clock to trace. Blocks, at most timeout.
  void read(Trace& trace, std::chrono::milliseconds timeout);
  /// Takes a server's kTime as it arrives.
  void take(const transport::FrameHeader& header);

 private:
  struct Answer {
    TraceClock::time_point there, here;
  };
  std::optional<ClockReading> read_server(std::uint32_t server, const Trace& trace,
                                          TraceClock::time_point deadline);
  std::optional<Answer> ask(std::uint32_t server, TraceClock::time_point deadline);

  transport::Messenger& messenger_;
  std::mutex mutex_;
  std::condition_variable answered_;
  std::uint64_t asked_ = 0;       ///< number of the last question
  std::optional<Answer> answer_;  ///< to it
};

}  // namespace gradwire::kvstore
