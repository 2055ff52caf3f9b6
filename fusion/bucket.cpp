#include "fusion/bucket.h"

namespace gradwire::fusion {

BucketLayout fuse(std::span<const std::uint64_t> slot_bytes, std::uint64_t min_bytes) {
  BucketLayout layout;
  layout.bucket_of_slot.resize(slot_bytes.size());
  bool open = false;
  for (std::size_t i = slot_bytes.size(); i-- > 0;) {
    const bool large = slot_bytes[i] >= min_bytes;
    if (!open || large) layout.buckets.emplace_back();
    Bucket& bucket = layout.buckets.back();
    bucket.slots.push_back(static_cast<std::uint32_t>(i));
    bucket.bytes += slot_bytes[i];
    layout.bucket_of_slot[i] = static_cast<std::uint32_t>(layout.buckets.size() - 1);
    open = bucket.bytes < min_bytes;
  }
  return layout;
}

BucketCountdown::BucketCountdown(const BucketLayout& layout) : counters_(layout.buckets.size()) {
  for (std::size_t i = 0; i < counters_.size(); ++i) counters_[i].slots = layout.buckets[i].slots.size();
}

bool BucketCountdown::arrive(std::uint32_t bucket) noexcept {
  Counter& counter = counters_[bucket];
  return (counter.arrived.fetch_add(1, std::memory_order_acq_rel) + 1) % counter.slots == 0;
}

}  // namespace gradwire::fusion
