// Engine: gradients that stay in place, the buckets that they travel in, and the step in progress.
#include "kvstore/engine_slots.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "kvstore/agreement.h"
#include "kvstore/engine_thread.h"
#include "kvstore/hierarchy.h"

namespace gradwire::kvstore {

void Engine::bind_slots(std::span<const KeyId> keys, std::span<const std::span<float>> values,
                        std::shared_ptr<compress::Device> device, std::span<const std::int32_t> priorities) {
  if (keys.size() != values.size() || (!priorities.empty() && priorities.size() != keys.size())) {
    throw std::invalid_argument(
        fmt::format("bind_slots: {} keys, {} arrays and {} priorities; give as many of each", keys.size(),
                    values.size(), priorities.size()));
  }
  require_optimizer("bind_slots");
  std::vector<std::uint64_t> bytes;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    require_size("bind_slots", keys[i], values[i].size());
    bytes.push_back(values[i].size_bytes());
  }
  slots_ = std::make_unique<Slots>(bytes, options_.fusion_bytes, compression_groups(keys));
  if (device) rounds().link(device);  // one that cannot be used is refused here
  slots_->device = std::move(device);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    slots_->slots[i].key = keys[i];
    slots_->slots[i].values = values[i];
    slots_->slots[i].priority = priorities.empty() ? -static_cast<std::int32_t>(i) : priorities[i];
  }
  agree_on_settings(*messenger_, "bind_slots", all_gather("bind_slots", describe_buckets()));
  for (std::size_t bucket = 0; !has_optimizer_ && bucket < slots_->fused.size(); ++bucket) {
    if (slots_->layout.buckets[bucket].slots.size() > 1) fuse(bucket);
  }
  take_residuals_along(keys);
}

/// Has each slot go alone from now on: an optimizer's weight is one key, and not a bucket of them.
void Engine::leave_buckets() {
  std::vector<KeyId> keys;
  for (const Slots::Slot& slot : slots_->slots) keys.push_back(slot.key);
  for (Slots::Fused& fused : slots_->fused) fused = {};
  take_residuals_along(keys);
}

/// What a step has begun is not between steps, and its buckets cannot be left.
void Engine::require_no_step(const char* verb) const {
  const auto left = unmarked();
  if (!slots_ || left.size() == slots_->slots.size()) return;
  throw std::logic_error(fmt::format("{}: a step is under way: {} of {} slots are marked; drain it first",
                                     verb, slots_->slots.size() - left.size(), slots_->slots.size()));
}

std::string Engine::describe_buckets() const {
  const std::shared_lock lock(keys_mutex_);
  std::string text;
  for (const fusion::Bucket& bucket : slots_->layout.buckets) {
    std::vector<std::string_view> names;
    for (const std::uint32_t slot : bucket.slots) names.push_back(keys_[slots_->slots[slot].key].name);
    text += fmt::format("a bucket of keys {}\n", fmt::join(names, ", "));
  }
  return text;
}

void Engine::fuse(std::size_t bucket) {
  Slots::Fused& fused = slots_->fused[bucket];
  const auto& members = slots_->layout.buckets[bucket].slots;
  std::vector<KeyId> keys;
  fused.priority = slots_->slots[members.front()].priority;
  for (const std::uint32_t slot : members) {
    keys.push_back(slots_->slots[slot].key);
    fused.tensors.push_back(slots_->slots[slot].values);
    fused.priority = std::max(fused.priority, slots_->slots[slot].priority);
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

void Engine::mark_ready(std::uint32_t slot, void* stream) {
  require_open("mark_ready");
  if (!slots_ || slot >= slots_->slots.size()) {
    throw std::invalid_argument(
        fmt::format("mark_ready: slot {} is not bound; {} are", slot, slots_ ? slots_->slots.size() : 0));
  }
  compress::Device::Mark written;
  if (slots_->device) {
    slots_->device->use();
    written = slots_->device->mark(stream);
  }
  if (slots_->slots[slot].marked.exchange(true)) {
    throw std::logic_error(
        fmt::format("mark_ready: slot {} was marked twice in one step; drain the step first", slot));
  }
  if (slots_->device) slots_->slots[slot].written = std::move(written);
  const std::uint32_t bucket = slots_->layout.bucket_of_slot[slot];
  if (slots_->countdown.arrive(bucket)) submit_sealed(bucket);
}

// Buckets that must go in order wait for those before them.
void Engine::submit_sealed(std::uint32_t bucket) {
  const std::lock_guard lock(slots_->tickets_mutex);
  if (!in_order_) return submit_bucket(bucket);
  slots_->sealed[bucket] = true;
  while (slots_->next < slots_->sealed.size() && slots_->sealed[slots_->next]) submit_bucket(slots_->next++);
}

std::optional<DeviceOperation> Engine::slots_on_device(std::span<const std::uint32_t> slots) const {
  if (!slots_->device) return std::nullopt;
  DeviceOperation operation;
  operation.link = rounds().link(slots_->device);
  for (const std::uint32_t slot : slots) operation.marks.push_back(slots_->slots[slot].written);
  return operation;
}

// The values of a fused bucket are gathered here, where the caller has just written most of them; on a
// device, there.
void Engine::submit_bucket(std::uint32_t bucket) {
  Slots::Fused& fused = slots_->fused[bucket];
  auto& tickets = slots_->tickets[bucket];
  tickets.clear();
  const float scale = slots_->scale.load();
  if (fused.together == nullptr) {
    for (const std::uint32_t slot : slots_->layout.buckets[bucket].slots) {
      const auto& bound = slots_->slots[slot];
      tickets.push_back(submit_push_pull(bound.key, bound.values, bound.values, bound.priority, scale,
                                         slots_on_device({&slot, 1})));
    }
    return;
  }
  EngineThread::Operation operation;
  operation.device = slots_on_device(slots_->layout.buckets[bucket].slots);
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
  tickets.push_back(operation.done);
  rounds().submit(fused.together->key, std::move(operation));
}

std::vector<std::uint32_t> Engine::unmarked() const {
  std::vector<std::uint32_t> left;
  for (std::uint32_t i = 0; slots_ && i < slots_->slots.size(); ++i) {
    if (!slots_->slots[i].marked.load()) left.push_back(i);
  }
  return left;
}

void Engine::require_all_marked(const char* verb) const {
  if (const auto left = unmarked(); !left.empty()) {
    throw std::logic_error(fmt::format("{}: {} of {} slots are not marked, the first is slot {}", verb,
                                       left.size(), slots_->slots.size(), left.front()));
  }
}

std::vector<SlotSum> Engine::slot_sums() const {
  std::vector<SlotSum> sums;
  if (!slots_) return sums;
  require_all_marked("slot_sums");
  const std::lock_guard lock(slots_->tickets_mutex);
  for (std::size_t bucket = 0; bucket < slots_->tickets.size(); ++bucket) {
    const auto& tickets = slots_->tickets[bucket];
    const auto& members = slots_->layout.buckets[bucket].slots;
    if (slots_->fused[bucket].together != nullptr) {
      sums.push_back({tickets.front(), members});
      continue;
    }
    for (std::size_t i = 0; i < members.size(); ++i) sums.push_back({tickets[i], {members[i]}});
  }
  return sums;
}

bool Engine::drain_for(std::chrono::milliseconds timeout) {
  if (!slots_) return true;
  require_all_marked("drain");
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const std::lock_guard lock(slots_->tickets_mutex);
  for (const auto& tickets : slots_->tickets) {
    for (const Ticket& ticket : tickets) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (!ticket.wait_for(std::max(left, std::chrono::milliseconds(0)))) return false;
    }
  }
  for (auto& slot : slots_->slots) slot.marked = false;
  slots_->sealed.assign(slots_->sealed.size(), false);
  slots_->next = 0;
  return true;
}

void Engine::set_slot_scale(float scale) {
  if (slots_) slots_->scale = scale;
}

}  // namespace gradwire::kvstore
