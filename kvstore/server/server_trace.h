// ServerTrace records what one thread of a server does to the rounds that it answers.
//
// Threading: as the Shard that owns it.
#pragma once

#include <utility>

#include "kvstore/aggregate/aggregator.h"
#include "kvstore/trace/trace.h"

namespace gradwire::kvstore {

class ServerTrace {
 public:
  explicit ServerTrace(Tracer tracer) : tracer_(std::move(tracer)) {}

  /// When the frames that are handled next came in, and their sender.
  void arrived(TraceClock::time_point time, std::uint32_t worker) {
    arrived_ = time;
    worker_ = worker;
  }
  void on(Aggregator::Moment moment, const transport::FrameHeader& header);
  const Tracer& tracer() const { return tracer_; }

 private:
  void note(Stage stage, const transport::FrameHeader& header, TraceClock::time_point begin,
            TraceClock::time_point end, std::uint64_t bytes, std::uint32_t peer) const;

  Tracer tracer_;
  TraceClock::time_point arrived_;
  std::uint32_t worker_ = kNoPeer;
  TraceClock::time_point all_here_,
      summed_;  ///< of the round in hand, which a thread has one of; the epoch: unseen
};

}  // namespace gradwire::kvstore
