#include "fusion/bucket.h"

#include <algorithm>
#include <functional>
#include <map>

namespace gradwire::fusion {

BucketLayout fuse(std::span<const std::uint64_t> slot_bytes, std::uint64_t min_bytes,
                  std::span<const std::uint32_t> groups) {
  BucketLayout layout;
  std::map<std::uint32_t, std::size_t> open;  // by group: the bucket that takes its next small slot
  // From the last slot on, as backward() produces gradients.
  for (std::size_t i = slot_bytes.size(); i-- > 0;) {
    const std::uint32_t group = groups.empty() ? 0 : groups[i];
    // A slot that is large enough stays alone: it must not wait for a small neighbour.
    if (!open.contains(group) || slot_bytes[i] >= min_bytes) {
      open[group] = layout.buckets.size();
      layout.buckets.emplace_back();
    }
    Bucket& bucket = layout.buckets[open[group]];
    bucket.slots.push_back(static_cast<std::uint32_t>(i));
    bucket.bytes += slot_bytes[i];
    if (bucket.bytes >= min_bytes) open.erase(group);
  }
  // A bucket is ready with its last slot; where buckets go in order, one must not wait for those behind it.
  std::ranges::sort(layout.buckets, std::greater{}, [](const Bucket& bucket) { return bucket.slots.back(); });
  layout.bucket_of_slot.resize(slot_bytes.size());
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    for (const std::uint32_t slot : layout.buckets[b].slots)
      layout.bucket_of_slot[slot] = static_cast<std::uint32_t>(b);
  }
  return layout;
}

BucketCountdown::BucketCountdown(const BucketLayout& layout) : counters_(layout.buckets.size()) {
  for (std::size_t i = 0; i < counters_.size(); ++i) counters_[i].slots = layout.buckets[i].slots.size();
}

bool BucketCountdown::arrive(std::uint32_t bucket) noexcept {
  Counter& counter = counters_[bucket];
  // Modulo, so that the next step needs no reset, which could race with its first arrivals. Acquire and
  // release let the thread that seals a bucket see what the others wrote into it.
  return (counter.arrived.fetch_add(1, std::memory_order_acq_rel) + 1) % counter.slots == 0;
}

}  // namespace gradwire::fusion
