#include "kvstore/engine/key_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace gradwire::kvstore {

void KeyTable::add(const std::vector<KeySpec>& sorted) {
  const std::unique_lock lock(mutex_);
  const KeyId first = keys_.size();
  std::unordered_map<std::string, KeyId> added;
  for (const KeySpec& key : sorted) {
    if (declared_.contains(key.name) || !added.emplace(key.name, first + added.size()).second) {
      throw std::invalid_argument(
          fmt::format("init: key '{}' was declared before; declare each key once", key.name));
    }
  }
  // After the names were checked: nothing has changed where this call throws for one.
  rounds_.add_keys(sorted, cut_, server_load_);
  keys_.insert(keys_.end(), sorted.begin(), sorted.end());
  declared_.merge(added);
}

std::uint64_t KeyTable::size() const {
  const std::shared_lock lock(mutex_);
  return keys_.size();
}

KeySpec KeyTable::spec(KeyId key) const {
  elements_of(key);
  const std::shared_lock lock(mutex_);
  return keys_[key];
}

std::uint64_t KeyTable::elements_of(KeyId key) const {
  const std::shared_lock lock(mutex_);
  if (key >= keys_.size())
    throw std::invalid_argument(fmt::format("key {} was not declared; {} keys are", key, keys_.size()));
  return keys_[key].elements();
}

void KeyTable::require_size(const char* verb, KeyId key, std::size_t given) const {
  rounds_.require_open(verb);
  if (const std::uint64_t expected = elements_of(key); given != expected) {
    throw std::invalid_argument(
        fmt::format("{}: key '{}' has {} elements, {} given", verb, spec(key).name, expected, given));
  }
}

void KeyTable::require_array(const char* verb, KeyId key, ConstArrayView given) const {
  require_size(verb, key, given.size());
  if (!given.is_float64()) return;
  const KeySpec declared = spec(key);
  if (declared.is_float64()) return;
  throw std::invalid_argument(fmt::format(
      "{}: key '{}' was declared as {}, and float64 was given; declare it as float64, or give float32", verb,
      declared.name, declared.dtype));
}

// ------------------------------------------------------------------------------------- buckets

Home KeyTable::home_of(KeyId key) const {
  const auto found = homes_.find(key);
  return found == homes_.end() ? Home{key, 0} : found->second;
}

FusedBucket& KeyTable::bucket_of(const std::vector<KeyId>& members) {
  const auto [found, is_new] = buckets_.try_emplace(members);
  FusedBucket& bucket = found->second;
  // Bound again, or by another set: the keys travel as before, with the number that all ranks know.
  if (!is_new) return bucket;
  const std::unique_lock lock(mutex_);
  // For people only: a bucket is not among the declared names, so a key may be called the same.
  KeySpec spec{fmt::format("{} to {}", keys_[members.back()].name, keys_[members.front()].name), {0}};
  std::vector<std::uint32_t> segments;
  for (const KeyId member : members) {
    segments.push_back(static_cast<std::uint32_t>(keys_[member].elements()));
    spec.shape.front() += segments.back();
  }
  const auto servers = static_cast<std::uint32_t>(server_load_.size());
  // No bound is reached, so that the bucket goes whole to one server.
  const auto parts =
      place_keys({&spec, 1}, servers, cut_, std::numeric_limits<std::uint64_t>::max(), server_load_);
  rounds_.add_bucket(spec, {parts.front().front().server, 0, spec.elements()}, std::move(segments));
  bucket.key = keys_.size();
  keys_.push_back(std::move(spec));
  return bucket;
}

bool KeyTable::is_bucket(KeyId key) const {
  return std::ranges::any_of(buckets_, [key](const auto& entry) { return entry.second.key == key; });
}

Layout KeyTable::layout() const {
  const std::shared_lock lock(mutex_);
  Layout layout(keys_.size());
  for (KeyId key = 0; key < keys_.size(); ++key) {
    const Home home = home_of(key);
    layout[key] = {keys_[key], {}, {home.key, home.offset}};
  }
  for (const auto& [members, bucket] : buckets_) layout[bucket.key].members = members;
  return layout;
}

}  // namespace gradwire::kvstore
