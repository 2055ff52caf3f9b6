#include "kvstore/engine/compression_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "compress/codecs.h"
#include "fusion/partition.h"
#include "kvstore/engine/engine_context.h"
#include "kvstore/wire/weight_replies.h"

namespace gradwire::kvstore {
namespace {

std::shared_ptr<const Compression> make_compression(const compress::CodecSpec& spec,
                                                    const std::string& reply) {
  Compression compression{compress::make(spec), {}};
  compression.reply = compress::reply_kind(*compression.codec, reply);
  return std::make_shared<const Compression>(std::move(compression));
}

constexpr const char* kAnswersAreWeights = "servers with an optimizer answer with weights";

void refuse_agreed_scales(const char* verb, const Compression& compression, const char* why) {
  if (!compression.codec->agrees_scales()) return;
  throw std::invalid_argument(
      fmt::format("{}: {} takes its scale from the sums of rounds, and {}; give a threshold, as "
                  "2bit:threshold=0.5, or take another codec",
                  verb, compress::canonical_spec(compression.codec->spec()), why));
}

/// At most, but for the floats of a first round, in which scales are yet to be agreed.
std::uint64_t unit_payload_bytes(const compress::Codec& codec) {
  return codec.agrees_scales() ? compress::kUnitElements / 4
                               : codec.max_encoded_size(compress::kUnitElements);
}

std::string describe(const Compression& compression) {
  return fmt::format("compression={}\nreply={}\n", compress::canonical_spec(compression.codec->spec()),
                     static_cast<int>(compression.reply));
}

/// Nothing where weights come back as they are.
std::string describe(const WeightReplies& replies) {
  return replies.form() == WeightReplies::Form::kFloats ? "" : fmt::format("weights={}\n", replies.text());
}

}  // namespace

/// Where pushes are applied at once, and where weights are what comes back, no round tells workers what their
/// next scale is.
void CompressionSettings::require_own_scale(const char* verb, const Compression& compression) const {
  if (context_.options.async)
    refuse_agreed_scales(verb, compression, "this store applies every push at once, so that there are none");
  if (context_.optimizer.is_set) refuse_agreed_scales(verb, compression, kAnswersAreWeights);
}

void CompressionSettings::require_weights(const char* verb) const {
  if (context_.options.goes_on) {
    throw std::invalid_argument(fmt::format(
        "{}: this job goes on without workers that die (on_failure='continue'), and servers keep weights for "
        "one generation of it; let the workers' optimizer step (gradwire.torch, gradwire.elastic), or create "
        "the store with on_failure='abort'",
        verb));
  }
  if (all_) refuse_agreed_scales(verb, *all_, kAnswersAreWeights);
  for (const auto& [key, compression] : own_) refuse_agreed_scales(verb, *compression, kAnswersAreWeights);
}

void CompressionSettings::set(const compress::CodecSpec& spec, const std::string& reply,
                              const std::string& weights) {
  std::shared_ptr<const Compression> compression;
  std::shared_ptr<const WeightReplies> replies;
  context_.meeting.check_for_all("compression", [&] {
    compression = make_compression(spec, reply);
    require_own_scale("set_gradient_compression", *compression);
    replies = std::make_shared<const WeightReplies>(weights);
    if (context_.in_order && replies->form() != WeightReplies::Form::kFloats) {
      throw std::invalid_argument(
          fmt::format("set_gradient_compression: weights={} was given, and where a library sums no server "
                      "sends weights; leave it out, or use a store such as 'dist_sync'",
                      replies->text()));
    }
  });
  context_.rounds.await("set_gradient_compression");  // a push that has not begun yet is of the codec before
  context_.meeting.agree("set_gradient_compression", describe(*compression) + describe(*replies),
                         "compression");
  // Only a change: setting the format anew makes workers forget the weights that they hold, and get whole
  // ones.
  if (replies->text() != weight_replies_) tell_weight_replies(replies);
  if (context_.rows) context_.rows->set_compression(compression);
  // Keys that are declared from now on are cut by what this codec makes of a unit (wire/PROTOCOL.md,
  // "Placement").
  context_.keys.set_shortest_piece(
      fusion::shortest_piece(compress::kUnitElements, unit_payload_bytes(*compression->codec)));
  all_ = compression;
  RoundThread& job = context_.rounds.job();
  job.post([&tensors = job.tensors(), compression] { tensors.set_compression(compression); });
}

void CompressionSettings::tell_weight_replies(const std::shared_ptr<const WeightReplies>& replies) {
  if (context_.rank() == 0) context_.rounds.command("weights " + replies->text());
  // Between the command and the barrier: no worker pushes before all servers and this worker's thread have
  // the format.
  context_.rounds.set_weight_replies(replies, context_.keys.size());
  weight_replies_ = replies->text();
  context_.barrier();
}

void CompressionSettings::set_of_tables(std::span<const std::uint64_t> tables,
                                        const compress::CodecSpec& spec, const std::string& reply) {
  std::shared_ptr<const Compression> compression;
  context_.meeting.check_for_all("table compression", [&] { compression = make_compression(spec, reply); });
  const std::string text = fmt::format("tables={}\n{}", fmt::join(tables, ","), describe(*compression));
  context_.meeting.agree("set_table_compression", text, "table compression");
  for (const std::uint64_t table : tables) context_.require_rows().set_compression_of(table, compression);
}

void CompressionSettings::set_of_keys(std::span<const KeyId> keys, const compress::CodecSpec& spec,
                                      const std::string& reply) {
  std::shared_ptr<const Compression> compression;
  std::vector<KeyId> buckets;
  context_.meeting.check_for_all("key compression", [&] {
    compression = make_compression(spec, reply);
    require_own_scale("set_key_compression", *compression);
    // Throws for a key that does not exist, on all ranks.
    for (const KeyId key : keys) context_.keys.elements_of(key);
    buckets = whole_buckets_of(keys);
  });
  // A push that was begun before has the codec from before, as on all ranks.
  context_.rounds.await("set_key_compression");
  const std::string text = fmt::format("keys={}\n{}", fmt::join(keys, ","), describe(*compression));
  context_.meeting.agree("set_key_compression", text, "key compression");
  for (const KeyId key : keys) tell(key, compression);
  for (const KeyId bucket : buckets) tell(bucket, compression);
}

/// Returns the buckets that keys travel in. Throws std::logic_error where another key travels there too: what
/// is in one bucket has one codec.
std::vector<KeyId> CompressionSettings::whole_buckets_of(std::span<const KeyId> keys) const {
  std::vector<KeyId> buckets;
  for (const auto& [members, bucket] : context_.keys.buckets()) {
    const auto is_here = [&, home = bucket.key](KeyId key) { return context_.keys.home_of(key).key == home; };
    if (std::ranges::none_of(keys, is_here)) continue;
    for (const KeyId member : members) {
      // A member may have left the bucket since: only those that travel in it now must change with it.
      if (!is_here(member) || std::ranges::find(keys, member) != keys.end()) continue;
      throw std::logic_error(
          fmt::format("set_key_compression: keys {} travel in one bucket, and key {} is not given; give all "
                      "of them, or set it before bind_slots",
                      fmt::join(members, ", "), member));
    }
    buckets.push_back(bucket.key);
  }
  return buckets;
}

void CompressionSettings::tell(KeyId key, const std::shared_ptr<const Compression>& compression) {
  own_[key] = compression;
  std::vector<KeyId> tensors;
  for (const KeyRange& range : context_.keys.own_ranges_of(key)) tensors.push_back(range.tensor);
  RoundThread& job = context_.rounds.job();
  job.post([&table = job.tensors(), tensors = std::move(tensors), compression] {
    table.set_compression_of(tensors, compression);
  });
}

void CompressionSettings::inherit(KeyId bucket, KeyId member) {
  // Also of a bucket that was bound before: its keys may have got another codec since.
  if (const auto own = own_.find(member); own != own_.end()) tell(bucket, own->second);
}

std::vector<std::uint32_t> CompressionSettings::bucket_groups(std::span<const KeyId> keys,
                                                              std::span<const std::uint32_t> groups) const {
  std::map<std::pair<std::uint32_t, std::string>, std::uint32_t> numbers;
  std::vector<std::uint32_t> found;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto own = own_.find(keys[i]);
    // Compared as text: equal codecs of two calls are one.
    const std::string text = own == own_.end() ? "" : describe(*own->second);
    const auto next = static_cast<std::uint32_t>(numbers.size());
    found.push_back(numbers.try_emplace({groups.empty() ? 0 : groups[i], text}, next).first->second);
  }
  return found;
}

}  // namespace gradwire::kvstore
