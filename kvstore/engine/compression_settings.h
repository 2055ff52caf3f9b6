// CompressionSettings holds the codec of each key, agreed on by all ranks: the common one, or one of its
// own.
//
// Threading: collectives.
// Failure: std::invalid_argument on all ranks for a bad spec, ranks that differ, and a codec that agrees
// scales where servers have an optimizer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compress/codec.h"
#include "kvstore/wire/compression.h"
#include "kvstore/wire/key.h"

namespace gradwire::kvstore {

class WeightReplies;
struct EngineContext;

class CompressionSettings {
 public:
  explicit CompressionSettings(EngineContext& context) : context_(context) {}

  /// Sets the codec and reply for all keys from the next push on, and how servers with an optimizer send
  /// weights back (weight_replies.h; tables of rows send them as float32). Waits first for this worker's own
  /// rounds. Scales that were agreed go on where it is the codec that agreed them, in the last round or in a
  /// checkpoint that was loaded. Throws std::invalid_argument for weights that no server sends, too, since a
  /// library sums.
  void set(const compress::CodecSpec& spec, const std::string& reply, const std::string& weights = "fp32");
  /// Sets the codec and reply of some keys apart from what holds for all. Slots of other codecs do not share
  /// a bucket, so of keys that are bound already it takes all of a bucket or none. Throws std::logic_error
  /// naming a key that was left out.
  void set_of_keys(std::span<const KeyId> keys, const compress::CodecSpec& spec, const std::string& reply);
  /// Sets the codec and reply of some tables of rows apart from what holds for all.
  void set_of_tables(std::span<const std::uint64_t> tables, const compress::CodecSpec& spec,
                     const std::string& reply);

  /// Throws std::invalid_argument where servers cannot keep weights.
  void require_weights(const char* verb) const;
  /// Has a bucket travel by the codec of one of its members.
  void inherit(KeyId bucket, KeyId member);
  /// Numbers the codecs of keys, and with them the groups that the caller gives: keys with one number may
  /// share a bucket.
  std::vector<std::uint32_t> bucket_groups(std::span<const KeyId> keys,
                                           std::span<const std::uint32_t> groups) const;

 private:
  void require_own_scale(const char* verb, const Compression& compression) const;
  std::vector<KeyId> whole_buckets_of(std::span<const KeyId> keys) const;
  void tell(KeyId key, const std::shared_ptr<const Compression>& compression);
  void tell_weight_replies(const std::shared_ptr<const WeightReplies>& replies);

  EngineContext& context_;
  std::shared_ptr<const Compression> all_;                     ///< once set. Owners: this and the thread
  std::map<KeyId, std::shared_ptr<const Compression>> own_{};  ///< of keys that have one; owners: likewise
  std::string weight_replies_ = "fp32";                        ///< how servers send weights
};

}  // namespace gradwire::kvstore
