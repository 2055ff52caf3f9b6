// RoundGate decides which pushes may come in, and which workers no longer push, for rounds of partitions and
// of tables alike.
//
// Threading: one owner. Pure.
// Failure: throws Refused for a push that must be refused; nothing has changed then.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvstore/aggregate/push_clocks.h"
#include "kvstore/leavers.h"
#include "kvstore/wire/protocol.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

class RoundGate {
 public:
  /// what: rounds are of, to people: "key" or "table". how: a push is refused.
  RoundGate(std::string_view what, Refusal how) : what_(what), how_(how) {}

  /// Whether a push is so far ahead of the slowest that it may not open a round: bounds what a fast worker
  /// can pile up.
  static bool is_too_far_ahead(std::uint64_t step, std::uint64_t next_step) {
    return step >= next_step + kMaxStepsAhead;
  }
  static constexpr std::uint64_t kMaxStepsAhead = 64;

  /// Requires that a push travels as the first of its round.
  void require_alike(std::uint32_t worker, const transport::FrameHeader& push,
                     const transport::FrameHeader& first) const;
  /// Where pushes are applied at once: requires that it is the worker's next, or one that came before, and
  /// that somebody can apply it.
  void require_next(std::uint32_t worker, const transport::FrameHeader& push, const PushClocks& clocks) const;
  void require_optimizer(const transport::FrameHeader& push, bool is_set) const;

  /// Notes that a worker will push no more. error: what has ended it, if an error has.
  void forget_worker(std::uint32_t worker, const std::string& error) { gone_.add(worker, error); }
  const Leavers& gone() const { return gone_; }
  /// "worker 2 left the job before step 3 of key 0; ..." Requires that it is gone.
  std::string describe(std::uint32_t worker, std::uint64_t step, std::uint64_t key) const;

 private:
  const std::string_view what_;
  const Refusal how_;
  Leavers gone_;
};

}  // namespace gradwire::kvstore
