// Engine::Slots: one set of tensors that stay in place, the buckets they travel in, and the step in progress.
//
// Threading: countdown and marks are atomic; the rest of a step is guarded by tickets_mutex.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "fusion/bucket.h"
#include "kvstore/engine/engine.h"

namespace gradwire::kvstore {

struct Engine::Slots {
  struct Slot {
    KeyId key = 0;
    std::int32_t priority = 0;
    std::span<float> values;
    compress::Device::Mark written;  ///< on a device: passed when the values are complete
    std::atomic<bool> marked{false};
  };
  Slots(std::span<const std::uint64_t> bytes, std::uint64_t fusion_bytes,
        std::span<const std::uint32_t> groups)
      : slots(bytes.size()),
        layout(fusion::fuse(bytes, fusion_bytes, groups)),
        countdown(layout),
        fused(layout.buckets.size()),
        tickets(layout.buckets.size()),
        sealed(layout.buckets.size()) {}

  struct Fused {
    Together* together = nullptr;  ///< none: each slot goes alone
    std::vector<std::span<float>> tensors;
    std::int32_t priority = 0;
  };

  std::vector<Slot> slots;
  std::shared_ptr<compress::Device> device;  ///< where all values lie; none: on the host
  fusion::BucketLayout layout;
  fusion::BucketCountdown countdown;
  std::atomic<float> scale{1};
  std::atomic<std::uint32_t> program_step{0};
  std::mutex tickets_mutex;
  std::vector<Fused> fused;                  ///< by bucket
  std::vector<std::vector<Ticket>> tickets;  ///< by bucket, of the step in progress: one, or one a slot
  std::vector<bool> sealed;                  ///< by bucket, in the step in progress, where they go in order
  std::uint32_t next = 0;                    ///< first bucket that has not gone

  /// Not marked in the step in progress.
  std::vector<std::uint32_t> unmarked() const;
  /// Throws std::logic_error where there are any; verb is the caller's.
  void require_all_marked(const char* verb) const;
};

}  // namespace gradwire::kvstore
