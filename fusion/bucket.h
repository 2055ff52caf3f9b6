// BucketLayout: which tensors are sealed and sent together. Slots are tensors in the order of declaration (front
// layer first); a bucket is a run of slots in the *reverse* order, as backward() produces them.
//
// Threading: BucketLayout is a value. BucketCountdown is lock-free: arrive() may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
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

/// Fuses neighbouring slots until a bucket holds at least min_bytes; a slot of at least min_bytes is a bucket alone.
BucketLayout fuse(std::span<const std::uint64_t> slot_bytes, std::uint64_t min_bytes);

/// Counts down each bucket's slots; reset per step.
class BucketCountdown {
 public:
  explicit BucketCountdown(const BucketLayout& layout);
  /// Marks a slot ready. Returns true for exactly one caller per bucket and step: the one that sealed it. The count
  /// is re-armed by then. Marking a slot twice in a step is the caller's bug (see Engine::mark_ready).
  bool arrive(std::uint32_t bucket);

 private:
  std::vector<std::uint32_t> slots_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> left_;
};

}  // namespace gradwire::fusion
