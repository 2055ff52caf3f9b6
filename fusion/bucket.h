// BucketLayout: which tensors are sealed and sent together. Slots are tensors in the order of declaration
// (front layer first). A bucket is a run of slots in the *reverse* order, as backward() produces them, or of
// those among them that belong to one group.
//
// Threading: BucketLayout is a value. BucketCountdown is lock-free: any thread may call arrive().
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

namespace gradwire::fusion {

struct Bucket {
  std::vector<std::uint32_t> slots;  ///< in order of readiness: last declared first
  std::uint64_t bytes = 0;
  bool operator==(const Bucket&) const = default;
};

struct BucketLayout {
  std::vector<Bucket> buckets;                ///< in order of readiness
  std::vector<std::uint32_t> bucket_of_slot;  ///< one entry per slot
  bool operator==(const BucketLayout&) const = default;
};

/// Fuses neighbouring slots until a bucket holds at least min_bytes; a slot of at least min_bytes is a bucket
/// alone. Where groups has a number for each slot, neighbours are those of one number: others do not share a
/// bucket.
BucketLayout fuse(std::span<const std::uint64_t> slot_bytes, std::uint64_t min_bytes,
                  std::span<const std::uint32_t> groups = {});

/// Decides which caller seals a bucket: the one whose slot was the last one missing.
class BucketCountdown {
 public:
  explicit BucketCountdown(const BucketLayout& layout);
  BucketCountdown(const BucketCountdown&) = delete;
  BucketCountdown& operator=(const BucketCountdown&) = delete;

  /// Marks one slot of a bucket ready. Returns true for exactly one caller per bucket and step. That caller
  /// seals the bucket and sees everything that the others wrote before. The next step may begin at once.
  /// Marking a slot twice in a step is the caller's bug (see Engine::mark_ready). Requires bucket <
  /// layout.buckets.size().
  bool arrive(std::uint32_t bucket) noexcept;

 private:
  struct Counter {
    std::atomic<std::uint64_t> arrived{0};  // over all steps, so that no step has to re-arm it
    std::uint64_t slots = 0;
  };
  std::vector<Counter> counters_;
};

}  // namespace gradwire::fusion
