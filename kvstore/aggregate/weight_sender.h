// WeightSender makes answers of weights: whole, rounded, or as the difference between the new weight and the
// one that a worker has (weight_replies.h). It remembers with each partition what was sent to the workers.
//
// Threading: one owner. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvstore/aggregate/partition.h"
#include "kvstore/wire/weight_replies.h"
#include "transport/frame.h"

namespace gradwire::kvstore {

/// Whether a request is answered for the first time. Where it comes again, nobody knows which answer the
/// worker gets, so each must leave it with the same.
enum class Delivery : std::uint8_t { kFirst, kRepeat };

class WeightSender {
 public:
  /// pool outlives this.
  WeightSender(std::uint32_t workers, transport::BufferPool& pool) : workers_(workers), pool_(pool) {}

  /// Sends weights so from now on. The same replies again change nothing: workers keep what they have. Throws
  /// as WeightReplies does.
  void set_replies(std::string_view text, Partitions& partitions);
  /// Sends each worker a whole weight before the next delta to it, because another server sent what it
  /// holds.
  static void forget_sent(Partitions& partitions);

  /// A first value of float64, as it was given.
  transport::Frame first_value(const Partition& partition, const transport::FrameHeader& request);
  /// The weight as workers have it after the last round, or would have it; for a request for content 1 where
  /// they get deltas, as it is.
  transport::Frame weight(const Partition& partition, const transport::FrameHeader& request);
  /// The answer from which all workers that have the last weight sent make the weight of the round that has
  /// just been summed.
  transport::Frame new_weight(Partition& partition, const transport::FrameHeader& request);
  /// The current weight, where pushes are applied at once. Where workers get deltas, a repeated request gets
  /// the same answer as before: the next delta is relative to that, whichever of the two answers has reached
  /// the worker. clocks: the partition's.
  transport::Frame async_weight(std::uint32_t worker, Partition& partition, PushClocks& clocks,
                                const transport::FrameHeader& request, Delivery delivery);
  /// The last answer, for a worker that has, or has not (held), the weight that a delta changes. Requires
  /// that there is one. is_sealed: whether what is made anew must be.
  transport::Frame last_answer(const Partition& partition, Content held, bool is_sealed);

 private:
  transport::Frame whole(std::span<const std::byte> weight, const transport::FrameHeader& request);
  transport::Frame whole(std::span<const float> weight, const transport::FrameHeader& request);
  transport::Frame encoded(Content content, transport::Buffer payload,
                           const transport::FrameHeader& request) const;
  transport::Frame encode_weight(const Partition& partition, std::vector<float>& held, std::uint32_t worker,
                                 const transport::FrameHeader& request);

  const std::uint32_t workers_;
  transport::BufferPool& pool_;
  WeightReplies replies_;
};

}  // namespace gradwire::kvstore
