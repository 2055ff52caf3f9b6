// SlotBuckets are gradients that stay in place, exchanged every step as backward() produces them. Several
// sets of them, each with steps of its own, serve several models or optimizers at one store; `set` is the
// set's number. Neighbours travel in buckets.
//
// Threading: bind() is a collective; mark_ready() from any thread, and never blocks; the rest from any
// thread.
// Lifetime: bound memory stays alive until Engine::close().
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "compress/device/device.h"
#include "kvstore/array_view.h"
#include "kvstore/runtime/ticket.h"
#include "kvstore/wire/key.h"

namespace gradwire::kvstore {

class CompressionSettings;
class ResidualAccess;
struct EngineContext;

/// Number of a set of slots, from 0.
using SlotSet = std::uint32_t;

/// What a step's slots wait for.
struct SlotSum {
  Ticket done;
  std::vector<std::uint32_t> slots;  ///< whose sums are there then: several where they travel as one
};

class SlotBuckets {
 public:
  /// All outlive this.
  SlotBuckets(EngineContext& context, CompressionSettings& compression, ResidualAccess& residuals);
  ~SlotBuckets();
  SlotBuckets(const SlotBuckets&) = delete;
  SlotBuckets& operator=(const SlotBuckets&) = delete;

  /// Binds slot i to keys[i] and values[i], front layers first, fuses neighbours into buckets. Values are as
  /// Engine::push_pull() takes them, but not of float64. Replaces an
  /// earlier binding of the set, in which no step may be in progress. A collective: small tensors of one
  /// bucket travel as one key that the ranks agree on here, and take their residuals along; where servers
  /// have an optimizer, each goes alone, since each is a weight.
  /// device: where all values lie; none: on the host. priorities: one for each slot, for where slots are some
  /// of the layers only; none: -i for slot i. A bucket has that of its most urgent slot. groups: one for each
  /// slot, for where codecs will change: slots of one group change together; none: all are of one.
  void bind(std::span<const KeyId> keys, std::span<const ArrayView> values,
            std::shared_ptr<compress::Device> device = nullptr, std::span<const std::int32_t> priorities = {},
            SlotSet set = 0, std::span<const std::uint32_t> groups = {});
  /// Says that slot's gradient is complete; on a device, once `stream` has done what it has been given so
  /// far. Throws std::logic_error when marked twice in a step.
  void mark_ready(std::uint32_t slot, void* stream = nullptr, SlotSet set = 0);
  /// Slots not yet marked in this step.
  std::vector<std::uint32_t> unmarked(SlotSet set = 0) const;
  /// Says what the step in progress waits for, so that each slot's sum can be used when it is there.
  /// Requires that every slot's mark_ready() has returned; drain_for() still ends the step.
  std::vector<SlotSum> sums(SlotSet set = 0) const;
  /// Waits up to timeout for all slots' sums, then ends the step. Requires every slot marked. Returns false
  /// on timeout.
  bool drain_for(std::chrono::milliseconds timeout, SlotSet set = 0);
  /// Multiplies every slot's sum by scale from the next step on (1/num_workers for means).
  void set_scale(float scale, SlotSet set = 0);
  /// Says which step of the worker's program the next step of the slots is of, as Engine::push_pull() has it.
  void set_program_step(std::uint32_t program_step, SlotSet set = 0);

  /// Throws std::logic_error while a step is under way: what it has begun is not between steps.
  void require_no_step(const char* verb) const;
  /// Has each slot go alone from now on: an optimizer's weight is one key, and not a bucket of them.
  void leave_buckets();

 private:
  struct Slots;
  Slots* slots_of(SlotSet set) const;
  std::string describe(const Slots& slots) const;
  void fuse(Slots& slots, std::size_t bucket);
  void move_residuals(const Slots& slots);
  void submit_sealed(Slots& slots, std::uint32_t bucket);
  void submit(Slots& slots, std::uint32_t bucket);

  EngineContext& context_;
  CompressionSettings& compression_;
  ResidualAccess& residuals_;
  mutable std::shared_mutex mutex_;  ///< guards sets_
  std::map<SlotSet, std::unique_ptr<Slots>> sets_;
};

}  // namespace gradwire::kvstore
