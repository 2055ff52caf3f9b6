#include "kvstore/engine/slot_buckets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "fusion/bucket.h"
#include "kvstore/engine/compression_settings.h"
#include "kvstore/engine/engine_context.h"
#include "kvstore/engine/residual_access.h"

namespace gradwire::kvstore {

/// One set of slots, the buckets they travel in, and the step in progress. Countdown and marks are atomic;
/// the rest of a step is guarded by tickets_mutex.
struct SlotBuckets::Slots {
  struct Slot {
    KeyId key = 0;
    std::int32_t priority = 0;
    ArrayView values;
    compress::Device::Mark written;  ///< on a device: passed when the values are complete
    std::atomic<bool> marked{false};
  };
  struct Bucket {
    FusedBucket* fused = nullptr;  ///< none: each slot goes alone
    std::vector<ArrayView> tensors;
    std::int32_t priority = 0;
    std::vector<Ticket> tickets;  ///< of the step in progress: one, or one a slot
    bool is_sealed = false;       ///< in the step in progress, where they go in order
  };

  Slots(std::span<const std::uint64_t> bytes, std::uint64_t fusion_bytes,
        std::span<const std::uint32_t> groups)
      : slots(bytes.size()),
        layout(fusion::fuse(bytes, fusion_bytes, groups)),
        countdown(layout),
        buckets(layout.buckets.size()) {}

  std::vector<std::uint32_t> unmarked() const {
    std::vector<std::uint32_t> left;
    for (std::uint32_t i = 0; i < slots.size(); ++i) {
      if (!slots[i].marked.load()) left.push_back(i);
    }
    return left;
  }
  void require_all_marked(const char* verb) const {
    if (const auto left = unmarked(); !left.empty()) {
      throw std::logic_error(fmt::format("{}: {} of {} slots are not marked, the first is slot {}", verb,
                                         left.size(), slots.size(), left.front()));
    }
  }
  std::span<const std::uint32_t> members(std::size_t bucket) const { return layout.buckets[bucket].slots; }

  std::vector<Slot> slots;
  std::shared_ptr<compress::Device> device;  ///< where all values lie; none: on the host
  fusion::BucketLayout layout;
  fusion::BucketCountdown countdown;
  std::atomic<float> scale{1};
  std::atomic<std::uint32_t> program_step{0};
  std::mutex tickets_mutex;
  std::vector<Bucket> buckets;
  std::uint32_t next = 0;  ///< first bucket that has not gone, where they go in order
};

// A step begins with the first mark and ends when drain_for() has seen every ticket. A bucket is submitted by
// the thread that marks the last of its slots, which may be one of autograd's.

SlotBuckets::SlotBuckets(EngineContext& context, CompressionSettings& compression, ResidualAccess& residuals)
    : context_(context), compression_(compression), residuals_(residuals) {}

SlotBuckets::~SlotBuckets() = default;

SlotBuckets::Slots* SlotBuckets::slots_of(SlotSet set) const {
  const std::shared_lock lock(mutex_);
  const auto found = sets_.find(set);
  return found == sets_.end() ? nullptr : found->second.get();
}

// ------------------------------------------------------------------------------------- binding

void SlotBuckets::bind(std::span<const KeyId> keys, std::span<const ArrayView> values,
                       std::shared_ptr<compress::Device> device, std::span<const std::int32_t> priorities,
                       SlotSet set, std::span<const std::uint32_t> groups) {
  const auto is_for_each = [&](const auto& given) { return given.empty() || given.size() == keys.size(); };
  if (keys.size() != values.size() || !is_for_each(priorities) || !is_for_each(groups)) {
    throw std::invalid_argument(
        fmt::format("bind_slots: {} keys, {} arrays, {} priorities and {} groups; give as many of each",
                    keys.size(), values.size(), priorities.size(), groups.size()));
  }
  context_.require_optimizer("bind_slots");
  std::vector<std::uint64_t> bytes;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    context_.keys.require_size("bind_slots", keys[i], values[i].size());
    if (values[i].is_float64()) {
      throw std::invalid_argument(
          fmt::format("bind_slots: key '{}' was given as {}; give float32, or fewer bits",
                      context_.keys.spec(keys[i]).name, name_of(values[i].type())));
    }
    // As they travel, so that buckets are the same on ranks whose arrays are of another type.
    bytes.push_back(values[i].size() * sizeof(float));
  }
  auto made =
      std::make_unique<Slots>(bytes, context_.options.fusion_bytes, compression_.bucket_groups(keys, groups));
  if (device) context_.rounds.own().devices().link(device);  // one that cannot be used is refused here
  made->device = std::move(device);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    made->slots[i].key = keys[i];
    made->slots[i].values = values[i];
    made->slots[i].priority = priorities.empty() ? -static_cast<std::int32_t>(i) : priorities[i];
  }
  Slots& slots = *made;
  // Before keys are made of buckets, because their numbers must be the same on all ranks. What is refused
  // here leaves the earlier binding as it was.
  context_.meeting.agree("bind_slots", describe(slots));
  {
    const std::unique_lock lock(mutex_);
    sets_[set] = std::move(made);
  }
  for (std::size_t bucket = 0; !context_.optimizer.is_set && bucket < slots.buckets.size(); ++bucket) {
    if (slots.members(bucket).size() > 1) fuse(slots, bucket);
  }
  move_residuals(slots);
}

std::string SlotBuckets::describe(const Slots& slots) const {
  std::string text;
  for (std::size_t bucket = 0; bucket < slots.buckets.size(); ++bucket) {
    std::vector<std::string> names;
    for (const std::uint32_t slot : slots.members(bucket))
      names.push_back(context_.keys.spec(slots.slots[slot].key).name);
    text += fmt::format("a bucket of keys {}\n", fmt::join(names, ", "));
  }
  return text;
}

void SlotBuckets::fuse(Slots& slots, std::size_t number) {
  Slots::Bucket& bucket = slots.buckets[number];
  const auto members = slots.members(number);
  std::vector<KeyId> keys;
  bucket.priority = slots.slots[members.front()].priority;
  for (const std::uint32_t slot : members) {
    keys.push_back(slots.slots[slot].key);
    bucket.tensors.push_back(slots.slots[slot].values);
    bucket.priority = std::max(bucket.priority, slots.slots[slot].priority);
  }
  bucket.fused = &context_.keys.bucket_of(keys);
  // All members have one codec (bucket_groups()), so any of them will do.
  compression_.inherit(bucket.fused->key, keys.front());
}

/// Moves the residuals of slots that have just been bound to where they travel now.
void SlotBuckets::move_residuals(const Slots& slots) {
  std::map<KeyId, Home> homes;
  // Also those that go alone now: they may come from a bucket of an earlier binding.
  for (const Slots::Slot& slot : slots.slots) homes[slot.key] = {slot.key, 0};
  for (std::size_t bucket = 0; bucket < slots.buckets.size(); ++bucket) {
    if (slots.buckets[bucket].fused == nullptr) continue;
    std::uint64_t offset = 0;
    for (const std::uint32_t slot : slots.members(bucket)) {
      homes[slots.slots[slot].key] = {slots.buckets[bucket].fused->key, offset};
      offset += slots.slots[slot].values.size();
    }
  }
  residuals_.move(std::vector<std::pair<KeyId, Home>>(homes.begin(), homes.end()));
}

void SlotBuckets::leave_buckets() {
  for (const auto& [set, slots] : sets_) {
    // No step is under way (set_optimizer()), so no ticket is lost.
    for (Slots::Bucket& bucket : slots->buckets) bucket = {};
    move_residuals(*slots);
  }
}

void SlotBuckets::require_no_step(const char* verb) const {
  const std::shared_lock lock(mutex_);
  for (const auto& [set, slots] : sets_) {
    const std::size_t left = slots->unmarked().size(), all = slots->slots.size();
    if (left == all) continue;
    throw std::logic_error(fmt::format("{}: a step is under way: {} of {} slots are marked; drain it first",
                                       verb, all - left, all));
  }
}

// ------------------------------------------------------------------------------------- a step

void SlotBuckets::mark_ready(std::uint32_t slot, void* stream, SlotSet set) {
  context_.callers->note_mark();
  context_.rounds.require_open("mark_ready");
  Slots* const slots = slots_of(set);
  if (slots == nullptr || slot >= slots->slots.size()) {
    throw std::invalid_argument(fmt::format("mark_ready: slot {} is not bound; {} are", slot,
                                            slots == nullptr ? 0 : slots->slots.size()));
  }
  compress::Device::Mark written;
  if (slots->device) {
    const compress::DeviceScope scope(*slots->device);
    // Here, on the thread that has queued the gradient's work: the mark is of what the stream has been given
    // so far.
    written = slots->device->mark(stream);
  }
  if (slots->slots[slot].marked.exchange(true)) {
    throw std::logic_error(
        fmt::format("mark_ready: slot {} was marked twice in one step; drain the step first", slot));
  }
  // After marked.exchange(): a second mark in one step must not move the first.
  if (slots->device) slots->slots[slot].written = std::move(written);
  const std::uint32_t bucket = slots->layout.bucket_of_slot[slot];
  if (!slots->countdown.arrive(bucket)) return;
  submit_sealed(*slots, bucket);
  context_.callers->note_mark();  // what was said while it was not begun is void, too
}

/// Buckets that must go in order wait for those before them.
void SlotBuckets::submit_sealed(Slots& slots, std::uint32_t bucket) {
  const std::lock_guard lock(slots.tickets_mutex);
  if (!context_.in_order) return submit(slots, bucket);
  // Slots are marked in any order. Where a library sums, calls need one that is the same on all ranks.
  slots.buckets[bucket].is_sealed = true;
  while (slots.next < slots.buckets.size() && slots.buckets[slots.next].is_sealed)
    submit(slots, slots.next++);
}

/// The values of a fused bucket are gathered here, where the caller has just written most of them; on a
/// device, there.
void SlotBuckets::submit(Slots& slots, std::uint32_t number) {
  Slots::Bucket& bucket = slots.buckets[number];
  // Those of the step before: drain_for() has seen them end.
  bucket.tickets.clear();
  const auto operation_of = [&](std::span<const std::uint32_t> members, std::int32_t priority) {
    Operation operation;
    operation.priority = priority;
    operation.scale = slots.scale.load();
    operation.program_step = slots.program_step.load();
    if (!slots.device) return operation;
    operation.device.emplace().link = context_.rounds.own().devices().link(slots.device);
    // The device waits for every gradient of the bucket, which may come from several streams.
    for (const std::uint32_t slot : members) operation.device->marks.push_back(slots.slots[slot].written);
    return operation;
  };
  if (bucket.fused == nullptr) {
    for (const std::uint32_t slot : slots.members(number)) {
      const Slots::Slot& bound = slots.slots[slot];
      Operation operation = operation_of({&slot, 1}, bound.priority);
      operation.in = bound.values;
      operation.out = bound.values;
      bucket.tickets.push_back(context_.rounds.push_pull(bound.key, std::move(operation)));
    }
    return;
  }
  Operation operation = operation_of(slots.members(number), bucket.priority);
  if (!operation.device) {
    std::vector<float>& values = bucket.fused->values;
    // In the first step: a bucket that is bound and never used takes no memory.
    if (values.empty()) values.resize(context_.keys.elements_of(bucket.fused->key));
    std::size_t at = 0;
    for (const ArrayView tensor : bucket.tensors) {
      copy_as_floats(tensor, std::span(values).subspan(at, tensor.size()));
      at += tensor.size();
    }
    operation.in = values;
    operation.out = values;
  }
  operation.scatter = bucket.tensors;
  bucket.tickets.push_back(
      context_.rounds.submit("a step's gradients", bucket.fused->key, std::move(operation)));
}

std::vector<std::uint32_t> SlotBuckets::unmarked(SlotSet set) const {
  const Slots* const slots = slots_of(set);
  return slots == nullptr ? std::vector<std::uint32_t>() : slots->unmarked();
}

std::vector<SlotSum> SlotBuckets::sums(SlotSet set) const {
  std::vector<SlotSum> sums;
  Slots* const slots = slots_of(set);
  if (slots == nullptr) return sums;
  slots->require_all_marked("slot_sums");
  const std::lock_guard lock(slots->tickets_mutex);
  for (std::size_t number = 0; number < slots->buckets.size(); ++number) {
    const Slots::Bucket& bucket = slots->buckets[number];
    const auto members = slots->members(number);
    if (bucket.fused != nullptr) {
      sums.push_back({bucket.tickets.front(), {members.begin(), members.end()}});
      continue;
    }
    for (std::size_t i = 0; i < members.size(); ++i) sums.push_back({bucket.tickets[i], {members[i]}});
  }
  return sums;
}

bool SlotBuckets::drain_for(std::chrono::milliseconds timeout, SlotSet set) {
  using Clock = std::chrono::steady_clock;
  Slots* const slots = slots_of(set);
  if (slots == nullptr) return true;
  // A slot that is not marked never gets a ticket, and the wait would not cover the whole step.
  slots->require_all_marked("drain");
  const auto deadline = Clock::now() + timeout;
  const std::lock_guard lock(slots->tickets_mutex);
  for (const Slots::Bucket& bucket : slots->buckets) {
    for (const Ticket& ticket : bucket.tickets) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      // The step is not over: marks stay, and a later call goes on waiting.
      if (!ticket.wait_for(std::max(left, std::chrono::milliseconds(0)))) return false;
    }
  }
  for (auto& slot : slots->slots) slot.marked = false;
  for (Slots::Bucket& bucket : slots->buckets) bucket.is_sealed = false;
  slots->next = 0;
  return true;
}

void SlotBuckets::set_scale(float scale, SlotSet set) {
  if (Slots* const slots = slots_of(set)) slots->scale = scale;
}

void SlotBuckets::set_program_step(std::uint32_t program_step, SlotSet set) {
  if (Slots* const slots = slots_of(set)) slots->program_step = program_step;
}

}  // namespace gradwire::kvstore
