// Engine: gradients that stay in place, the buckets that they travel in, and the steps in progress.
#include "kvstore/engine/engine_slots.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "kvstore/client/round_thread.h"
#include "kvstore/placement/hierarchy.h"
#include "kvstore/wire/agreement.h"

namespace gradwire::kvstore {

std::vector<std::uint32_t> Engine::Slots::unmarked() const {
  std::vector<std::uint32_t> left;
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].marked.load()) left.push_back(i);
  }
  return left;
}

void Engine::Slots::require_all_marked(const char* verb) const {
  if (const auto left = unmarked(); !left.empty()) {
    throw std::logic_error(fmt::format("{}: {} of {} slots are not marked, the first is slot {}", verb,
                                       left.size(), slots.size(), left.front()));
  }
}

Engine::Slots* Engine::slots_of(SlotSet set) const {
  const std::shared_lock lock(slot_sets_mutex_);
  const auto found = slot_sets_.find(set);
  return found == slot_sets_.end() ? nullptr : found->second.get();
}

void Engine::bind_slots(std::span<const KeyId> keys, std::span<const std::span<float>> values,
                        std::shared_ptr<compress::Device> device, std::span<const std::int32_t> priorities,
                        SlotSet set, std::span<const std::uint32_t> groups) {
  const auto is_for_each = [&](const auto& given) { return given.empty() || given.size() == keys.size(); };
  if (keys.size() != values.size() || !is_for_each(priorities) || !is_for_each(groups)) {
    throw std::invalid_argument(
        fmt::format("bind_slots: {} keys, {} arrays, {} priorities and {} groups; give as many of each",
                    keys.size(), values.size(), priorities.size(), groups.size()));
  }
  require_optimizer("bind_slots");
  std::vector<std::uint64_t> bytes;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    require_size("bind_slots", keys[i], values[i].size());
    bytes.push_back(values[i].size_bytes());
  }
  auto made = std::make_unique<Slots>(bytes, options_.fusion_bytes, bucket_groups(keys, groups));
  if (device) rounds().devices().link(device);  // one that cannot be used is refused here
  made->device = std::move(device);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    made->slots[i].key = keys[i];
    made->slots[i].values = values[i];
    made->slots[i].priority = priorities.empty() ? -static_cast<std::int32_t>(i) : priorities[i];
  }
  Slots& slots = *made;
  {
    const std::unique_lock lock(slot_sets_mutex_);
    slot_sets_[set] = std::move(made);
  }
  agree_on_settings(*messenger_, "bind_slots", all_gather("bind_slots", describe_buckets(slots)));
  for (std::size_t bucket = 0; !has_optimizer_ && bucket < slots.fused.size(); ++bucket) {
    if (slots.layout.buckets[bucket].slots.size() > 1) fuse(slots, bucket);
  }
  take_residuals_along(slots);
}

/// Has each slot go alone from now on: an optimizer's weight is one key, and not a bucket of them.
void Engine::leave_buckets() {
  for (const auto& [set, slots] : slot_sets_) {
    for (Slots::Fused& fused : slots->fused) fused = {};
    take_residuals_along(*slots);
  }
}

/// What a step has begun is not between steps, and its buckets cannot be left.
void Engine::require_no_step(const char* verb) const {
  const std::shared_lock lock(slot_sets_mutex_);
  for (const auto& [set, slots] : slot_sets_) {
    const std::size_t left = slots->unmarked().size(), all = slots->slots.size();
    if (left == all) continue;
    throw std::logic_error(fmt::format("{}: a step is under way: {} of {} slots are marked; drain it first",
                                       verb, all - left, all));
  }
}

std::string Engine::describe_buckets(const Slots& slots) const {
  const std::shared_lock lock(keys_mutex_);
  std::string text;
  for (const fusion::Bucket& bucket : slots.layout.buckets) {
    std::vector<std::string_view> names;
    for (const std::uint32_t slot : bucket.slots) names.push_back(keys_[slots.slots[slot].key].name);
    text += fmt::format("a bucket of keys {}\n", fmt::join(names, ", "));
  }
  return text;
}

void Engine::fuse(Slots& slots, std::size_t bucket) {
  Slots::Fused& fused = slots.fused[bucket];
  const auto& members = slots.layout.buckets[bucket].slots;
  std::vector<KeyId> keys;
  fused.priority = slots.slots[members.front()].priority;
  for (const std::uint32_t slot : members) {
    keys.push_back(slots.slots[slot].key);
    fused.tensors.push_back(slots.slots[slot].values);
    fused.priority = std::max(fused.priority, slots.slots[slot].priority);
  }
  fused.together = &together(keys);
}

Engine::Together& Engine::together(const std::vector<KeyId>& members) {
  const auto [found, is_new] = together_.try_emplace(members);
  Together& one = found->second;
  if (!is_new) {
    inherit_compression(one.key, members.front());
    return one;
  }
  const std::unique_lock lock(keys_mutex_);
  KeySpec spec{fmt::format("{} to {}", keys_[members.back()].name, keys_[members.front()].name), {0}};
  std::vector<std::uint32_t> segments;
  for (const KeyId member : members) {
    segments.push_back(static_cast<std::uint32_t>(keys_[member].elements()));
    spec.shape.front() += segments.back();
  }
  const auto parts =
      place_keys({&spec, 1}, num_servers(), cut_, std::numeric_limits<std::uint64_t>::max(), server_load_);
  const Part home{parts.front().front().server, 0, spec.elements()};
  if (hierarchy_) {
    hierarchy_->add_bucket(spec, home, segments);
  } else {
    thread_->add_bucket(spec, home, std::move(segments));
  }
  one.key = keys_.size();
  keys_.push_back(std::move(spec));
  inherit_compression(one.key, members.front());
  return one;
}

void Engine::mark_ready(std::uint32_t slot, void* stream, SlotSet set) {
  callers_->note_mark();
  require_open("mark_ready");
  Slots* const slots = slots_of(set);
  if (slots == nullptr || slot >= slots->slots.size()) {
    throw std::invalid_argument(fmt::format("mark_ready: slot {} is not bound; {} are", slot,
                                            slots == nullptr ? 0 : slots->slots.size()));
  }
  compress::Device::Mark written;
  if (slots->device) {
    slots->device->use();
    written = slots->device->mark(stream);
  }
  if (slots->slots[slot].marked.exchange(true)) {
    throw std::logic_error(
        fmt::format("mark_ready: slot {} was marked twice in one step; drain the step first", slot));
  }
  if (slots->device) slots->slots[slot].written = std::move(written);
  const std::uint32_t bucket = slots->layout.bucket_of_slot[slot];
  if (!slots->countdown.arrive(bucket)) return;
  submit_sealed(*slots, bucket);
  callers_->note_mark();  // what was said while it was not begun is void, too
}

// Buckets that must go in order wait for those before them.
void Engine::submit_sealed(Slots& slots, std::uint32_t bucket) {
  const std::lock_guard lock(slots.tickets_mutex);
  if (!in_order_) return submit_bucket(slots, bucket);
  slots.sealed[bucket] = true;
  while (slots.next < slots.sealed.size() && slots.sealed[slots.next]) submit_bucket(slots, slots.next++);
}

std::optional<DeviceOperation> Engine::slots_on_device(const Slots& slots,
                                                       std::span<const std::uint32_t> members) const {
  if (!slots.device) return std::nullopt;
  DeviceOperation operation;
  operation.link = rounds().devices().link(slots.device);
  for (const std::uint32_t slot : members) operation.marks.push_back(slots.slots[slot].written);
  return operation;
}

// The values of a fused bucket are gathered here, where the caller has just written most of them; on a
// device, there.
void Engine::submit_bucket(Slots& slots, std::uint32_t bucket) {
  Slots::Fused& fused = slots.fused[bucket];
  auto& tickets = slots.tickets[bucket];
  tickets.clear();
  const float scale = slots.scale.load();
  const std::uint32_t program_step = slots.program_step.load();
  if (fused.together == nullptr) {
    for (const std::uint32_t slot : slots.layout.buckets[bucket].slots) {
      const auto& bound = slots.slots[slot];
      tickets.push_back(submit_push_pull<float>(bound.key, bound.values, bound.values, bound.priority, scale,
                                                slots_on_device(slots, {&slot, 1}), program_step));
    }
    return;
  }
  Operation operation;
  operation.device = slots_on_device(slots, slots.layout.buckets[bucket].slots);
  if (!operation.device) {
    std::vector<float>& values = fused.together->values;
    if (values.empty()) values.resize(elements_of(fused.together->key));
    auto to = values.begin();
    for (const std::span<float> tensor : fused.tensors) to = std::ranges::copy(tensor, to).out;
    operation.in = values;
    operation.out = values;
  }
  operation.scatter = fused.tensors;
  operation.priority = fused.priority;
  operation.scale = scale;
  operation.program_step = program_step;
  operation.done.concern(callers_, {Callers::Wait::For::kKey, "a step's gradients", fused.together->key});
  tickets.push_back(operation.done);
  rounds().submit(fused.together->key, std::move(operation));
}

std::vector<std::uint32_t> Engine::unmarked(SlotSet set) const {
  const Slots* const slots = slots_of(set);
  return slots == nullptr ? std::vector<std::uint32_t>() : slots->unmarked();
}

std::vector<SlotSum> Engine::slot_sums(SlotSet set) const {
  std::vector<SlotSum> sums;
  Slots* const slots = slots_of(set);
  if (slots == nullptr) return sums;
  slots->require_all_marked("slot_sums");
  const std::lock_guard lock(slots->tickets_mutex);
  for (std::size_t bucket = 0; bucket < slots->tickets.size(); ++bucket) {
    const auto& tickets = slots->tickets[bucket];
    const auto& members = slots->layout.buckets[bucket].slots;
    if (slots->fused[bucket].together != nullptr) {
      sums.push_back({tickets.front(), members});
      continue;
    }
    for (std::size_t i = 0; i < members.size(); ++i) sums.push_back({tickets[i], {members[i]}});
  }
  return sums;
}

bool Engine::drain_for(std::chrono::milliseconds timeout, SlotSet set) {
  Slots* const slots = slots_of(set);
  if (slots == nullptr) return true;
  slots->require_all_marked("drain");
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const std::lock_guard lock(slots->tickets_mutex);
  for (const auto& tickets : slots->tickets) {
    for (const Ticket& ticket : tickets) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (!ticket.wait_for(std::max(left, std::chrono::milliseconds(0)))) return false;
    }
  }
  for (auto& slot : slots->slots) slot.marked = false;
  slots->sealed.assign(slots->sealed.size(), false);
  slots->next = 0;
  return true;
}

void Engine::set_slot_scale(float scale, SlotSet set) {
  if (Slots* const slots = slots_of(set)) slots->scale = scale;
}

void Engine::set_program_step(std::uint32_t program_step, SlotSet set) {
  if (Slots* const slots = slots_of(set)) slots->program_step = program_step;
}

}  // namespace gradwire::kvstore
