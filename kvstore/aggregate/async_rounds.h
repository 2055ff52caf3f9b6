// AsyncRounds are the rounds of partitions where every push is a round of its own. It is applied to the
// weight when it arrives, and answered when the workers' clocks allow it (push_clocks.h).
//
// Threading: one owner. Pure.
// Failure: throws Refused for a push that must be refused; nothing has changed then.
#pragma once

#include <cstdint>
#include <vector>

#include "kvstore/aggregate/partition.h"
#include "kvstore/aggregate/push_clocks.h"
#include "kvstore/aggregate/round_gate.h"
#include "kvstore/aggregate/round_sums.h"
#include "kvstore/aggregate/sealing.h"
#include "kvstore/aggregate/weight_sender.h"
#include "kvstore/wire/answer.h"

namespace gradwire::kvstore {

class AsyncRounds {
 public:
  /// All outlive this.
  AsyncRounds(Partitions& partitions, const AsyncWorkers& workers, const RoundGate& gate, RoundSums& sums,
              WeightSender& weights, CodecCache& codecs, Sealing sealing)
      : partitions_(partitions),
        workers_(workers),
        gate_(gate),
        sums_(sums),
        weights_(weights),
        codecs_(codecs),
        sealing_(sealing) {}

  /// Applies a push that was checked.
  void push(std::uint32_t worker, Partition& partition, transport::Frame frame, std::vector<Answer>& answers);
  transport::Frame pull(std::uint32_t worker, Partition& partition, const transport::FrameHeader& request);
  void probe(std::uint32_t worker, Partition& partition, const transport::FrameHeader& request,
             std::vector<Answer>& answers);
  /// Answers the workers that need not wait any more, with the current weights: a worker has pushed, is in a
  /// collective, or is gone.
  void answer_held(std::vector<Answer>& answers);
  /// A worker will push no more, and gets no more answers.
  void forget_worker(std::uint32_t worker);

 private:
  PushClocks& clocks_of(Partition& partition) const;
  void answer_held(Partition& partition, std::vector<Answer>& answers);
  transport::Frame answer(std::uint32_t worker, Partition& partition, const transport::FrameHeader& push,
                          Delivery delivery);

  Partitions& partitions_;
  const AsyncWorkers& workers_;
  const RoundGate& gate_;
  RoundSums& sums_;
  WeightSender& weights_;
  CodecCache& codecs_;
  const Sealing sealing_;
};

}  // namespace gradwire::kvstore
