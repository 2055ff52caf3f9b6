// RoundSpans records what happened to each part of a round, for a timeline. Only pushes have stages.
//
// Threading: submitted() on a caller's thread, note() in the loop or the pool while the round is in flight,
// the rest in the loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "kvstore/client/tensor.h"
#include "kvstore/trace/trace.h"

namespace gradwire::kvstore {

class RoundSpans {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RoundSpans(Tracer tracer) : tracer_(std::move(tracer)) {}

  const Tracer& tracer() const { return tracer_; }
  bool is_on() const noexcept { return tracer_.is_on(); }
  /// Before anything can wait for the operation.
  void submitted(KeyId key, Operation& operation) const;
  /// The first words on a round: its parts have been ready since it was submitted. A pull waits for the last
  /// push.
  void started(const Tensor& tensor) const;
  /// A stage of a part that ends now.
  void note(Stage stage, const Tensor& tensor, std::size_t part, Clock::time_point begin,
            std::uint64_t bytes) const;

 private:
  const Tracer tracer_;
};

}  // namespace gradwire::kvstore
