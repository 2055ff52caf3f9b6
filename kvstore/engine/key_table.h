// KeyTable holds the keys that all ranks have agreed on: their shapes, their places on servers, and the
// buckets in which small ones travel as one.
//
// Threading: add() and the methods about buckets: collectives' threads, one at a time; the rest from any
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "fusion/partition.h"
#include "kvstore/array_view.h"
#include "kvstore/checkpoint/checkpoint.h"
#include "kvstore/engine/worker_rounds.h"
#include "kvstore/wire/key.h"

namespace gradwire::kvstore {

/// Keys that travel as one: the key that they have then, and their values, one behind the other.
struct FusedBucket {
  KeyId key = 0;
  std::vector<float> values;  ///< on the host; what failed in them may be read until close()
};

class KeyTable {
 public:
  KeyTable(const WorkerRounds& rounds, std::uint32_t servers, std::uint64_t partition_elements)
      : rounds_(rounds), cut_{.max_elements = partition_elements}, server_load_(servers) {}

  /// Adds keys, which are sorted as all ranks have them, and places them. Throws std::invalid_argument naming
  /// one that is there already.
  void add(const std::vector<KeySpec>& sorted);
  /// Requires that it was added. Buckets have no number by name.
  KeyId number_of(const std::string& name) const { return declared_.at(name); }
  std::uint64_t size() const;
  /// Throws std::invalid_argument for a number that no key has.
  KeySpec spec(KeyId key) const;
  std::uint64_t elements_of(KeyId key) const;
  /// Throws std::invalid_argument unless the key has so many elements.
  void require_size(const char* verb, KeyId key, std::size_t given) const;
  /// Likewise, and for an array of float64 unless the key is of it: another key has sums of float32.
  void require_array(const char* verb, KeyId key, ConstArrayView given) const;

  // Buckets.

  Home home_of(KeyId key) const;
  void set_home(KeyId key, Home home) { homes_[key] = home; }
  /// The bucket of these keys, made when it is first asked for.
  FusedBucket& bucket_of(const std::vector<KeyId>& members);
  const std::map<std::vector<KeyId>, FusedBucket>& buckets() const { return buckets_; }
  bool is_bucket(KeyId key) const;

  /// Runs of a key's elements, wherever it travels now, as the thread of the job knows them.
  std::vector<KeyRange> ranges_of(KeyId key) const { return rounds_.ranges(home_of(key), elements_of(key)); }
  /// Likewise of a key or a bucket that travels alone.
  std::vector<KeyRange> own_ranges_of(KeyId key) const { return rounds_.ranges({key, 0}, elements_of(key)); }
  /// Everything, as checkpoints have it.
  Layout layout() const;

  /// Of keys that are added next: a run of elements that is worth a message of its own.
  void set_shortest_piece(std::uint64_t elements) { cut_.shortest_elements = elements; }
  /// Bytes placed on each server so far; tables of rows add theirs.
  std::vector<std::uint64_t>& server_load() { return server_load_; }

 private:
  const WorkerRounds& rounds_;
  fusion::OwnedCut cut_;  ///< of keys that are declared next: it goes by the codec of all keys
  std::vector<std::uint64_t> server_load_;
  mutable std::shared_mutex mutex_;  ///< guards keys_
  std::vector<KeySpec> keys_;
  std::unordered_map<std::string, KeyId> declared_;  ///< by name; buckets are not among them
  std::map<KeyId, Home> homes_;                      ///< of keys in buckets
  std::map<std::vector<KeyId>, FusedBucket> buckets_;
};

}  // namespace gradwire::kvstore
