// Engine: which codec each key travels by, and what codecs have not sent yet.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "compress/codecs.h"
#include "fusion/partition.h"
#include "kvstore/client/round_thread.h"
#include "kvstore/engine/engine.h"
#include "kvstore/engine/engine_slots.h"
#include "kvstore/placement/hierarchy.h"
#include "kvstore/rows/sparse_rows.h"
#include "kvstore/wire/agreement.h"
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
void Engine::require_own_scale(const char* verb, const Compression& compression) const {
  if (options_.at_once)
    refuse_agreed_scales(verb, compression, "this store applies every push at once, so that there are none");
  if (has_optimizer_) refuse_agreed_scales(verb, compression, kAnswersAreWeights);
}

/// Throws where servers cannot keep weights.
void Engine::require_weights(const char* verb) const {
  if (options_.goes_on) {
    throw std::invalid_argument(fmt::format(
        "{}: this job goes on without workers that die (on_failure='continue'), and servers keep weights for "
        "one generation of it; let the workers' optimizer step (gradwire.torch, gradwire.elastic), or create "
        "the store with on_failure='abort'",
        verb));
  }
  if (compression_) refuse_agreed_scales(verb, *compression_, kAnswersAreWeights);
  for (const auto& [key, compression] : own_compression_)
    refuse_agreed_scales(verb, *compression, kAnswersAreWeights);
}

void Engine::set_compression(const compress::CodecSpec& spec, const std::string& reply,
                             const std::string& weights) {
  std::shared_ptr<const Compression> compression;
  std::shared_ptr<const WeightReplies> replies;
  check_for_all("compression", [&] {
    compression = make_compression(spec, reply);
    require_own_scale("set_gradient_compression", *compression);
    replies = std::make_shared<const WeightReplies>(weights);
    if (in_order_ && replies->form() != WeightReplies::Form::kFloats) {
      throw std::invalid_argument(
          fmt::format("set_gradient_compression: weights={} was given, and where a library sums no server "
                      "sends weights; leave it out, or use a store such as 'dist_sync'",
                      replies->text()));
    }
  });
  await_rounds("set_gradient_compression");  // a push that has not begun yet is of the codec before
  agree_on_settings(*messenger_, "set_gradient_compression",
                    all_gather("compression", describe(*compression) + describe(*replies)));
  if (replies->text() != weight_replies_) tell_weight_replies(replies);
  if (sparse_) sparse_->set_compression(compression);
  cut_.shortest_elements =
      fusion::shortest_piece(compress::kUnitElements, unit_payload_bytes(*compression->codec));
  compression_ = compression;
  thread_->post([&tensors = thread_->tensors(), compression] { tensors.set_compression(compression); });
}

void Engine::tell_weight_replies(const std::shared_ptr<const WeightReplies>& replies) {
  if (rank() == 0) thread_->command("weights " + replies->text()).wait();
  thread_->set_weight_replies(replies);
  {
    const std::lock_guard lock(shown_mutex_);
    weight_replies_ = replies->text();
    for (KeyId key = 0; hierarchy_ && key < keys_.size(); ++key) shown_.insert(key);
  }
  barrier();
}

void Engine::set_table_compression(std::span<const std::uint64_t> tables, const compress::CodecSpec& spec,
                                   const std::string& reply) {
  std::shared_ptr<const Compression> compression;
  check_for_all("table compression", [&] { compression = make_compression(spec, reply); });
  const std::string text = fmt::format("tables={}\n{}", fmt::join(tables, ","), describe(*compression));
  agree_on_settings(*messenger_, "set_table_compression", all_gather("table compression", text));
  for (const std::uint64_t table : tables) sparse().set_compression_of(table, compression);
}

void Engine::set_key_compression(std::span<const KeyId> keys, const compress::CodecSpec& spec,
                                 const std::string& reply) {
  std::shared_ptr<const Compression> compression;
  std::vector<KeyId> buckets;
  check_for_all("key compression", [&] {
    compression = make_compression(spec, reply);
    require_own_scale("set_key_compression", *compression);
    for (const KeyId key : keys) elements_of(key);
    buckets = whole_buckets_of(keys);
  });
  await_rounds("set_key_compression");
  const std::string text = fmt::format("keys={}\n{}", fmt::join(keys, ","), describe(*compression));
  agree_on_settings(*messenger_, "set_key_compression", all_gather("key compression", text));
  for (const KeyId key : keys) tell_compression(key, compression);
  for (const KeyId bucket : buckets) tell_compression(bucket, compression);
}

/// Returns the buckets that keys travel in. Throws std::logic_error where another key travels there too: what
/// is in one bucket has one codec.
std::vector<KeyId> Engine::whole_buckets_of(std::span<const KeyId> keys) const {
  std::vector<KeyId> buckets;
  for (const auto& [members, bucket] : together_) {
    const auto is_here = [&, home = bucket.key](KeyId key) { return home_of(key).key == home; };
    if (std::ranges::none_of(keys, is_here)) continue;
    for (const KeyId member : members) {
      if (!is_here(member) || std::ranges::find(keys, member) != keys.end()) continue;
      throw std::logic_error(
          fmt::format("set_key_compression: keys {} travel in one bucket, and key {} is not given; give all "
                      "of them, or set "
                      "it before bind_slots",
                      fmt::join(members, ", "), member));
    }
    buckets.push_back(bucket.key);
  }
  return buckets;
}

void Engine::tell_compression(KeyId key, const std::shared_ptr<const Compression>& compression) {
  own_compression_[key] = compression;
  std::vector<KeyId> tensors;
  for (const Stretch& stretch : stretches({key, 0}, keys_[key].elements())) tensors.push_back(stretch.tensor);
  thread_->post([&table = thread_->tensors(), tensors = std::move(tensors), compression] {
    table.set_compression_of(tensors, compression);
  });
}

void Engine::inherit_compression(KeyId bucket, KeyId member) {
  if (const auto own = own_compression_.find(member); own != own_compression_.end())
    tell_compression(bucket, own->second);
}

/// Numbers the codecs of keys, and with them the groups that the caller gives: keys with one number may share
/// a bucket.
std::vector<std::uint32_t> Engine::bucket_groups(std::span<const KeyId> keys,
                                                 std::span<const std::uint32_t> groups) const {
  std::map<std::pair<std::uint32_t, std::string>, std::uint32_t> numbers;
  std::vector<std::uint32_t> found;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto own = own_compression_.find(keys[i]);
    const std::string text = own == own_compression_.end() ? "" : describe(*own->second);
    const auto next = static_cast<std::uint32_t>(numbers.size());
    found.push_back(numbers.try_emplace({groups.empty() ? 0 : groups[i], text}, next).first->second);
  }
  return found;
}

// ------------------------------------------------------------------------------------- residuals

Engine::Home Engine::home_of(KeyId key) const {
  const auto found = homes_.find(key);
  return found == homes_.end() ? Home{key, 0} : found->second;
}

std::vector<Engine::Stretch> Engine::stretches(Home home, std::uint64_t elements) const {
  if (!hierarchy_) return {{home.key, home.offset, 0, elements}};
  std::vector<Stretch> found;
  for (const Hierarchy::Run& run : hierarchy_->runs_of(home.key)) {
    const auto begin = std::max(run.part.offset, home.offset);
    const auto end = std::min(run.part.offset + run.part.count, home.offset + elements);
    if (begin < end)
      found.push_back({run.upstream, begin - run.part.offset, begin - home.offset, end - begin});
  }
  return found;
}

std::optional<double> Engine::residual_norm() {
  if (!thread_) return std::nullopt;
  double squares = 0;
  bool known = false;
  thread_
      ->between_rounds({},
                       [&] {
                         known = thread_->is_idle();
                         if (known) squares = thread_->residuals().squares();
                       })
      .wait();
  if (sparse_) squares += sparse_->residual_squares();
  return known ? std::optional(std::sqrt(squares)) : std::nullopt;
}

std::optional<double> Engine::share_sent() {
  if (!thread_) return std::nullopt;
  compress::ShareSent share;
  bool known = false;
  thread_
      ->between_rounds({},
                       [&] {
                         known = thread_->is_idle();
                         if (known) share = thread_->residuals().share();
                       })
      .wait();
  if (sparse_) share += sparse_->share_sent();
  return known && share.is_known ? std::optional(share.value()) : std::nullopt;
}

std::vector<float> Engine::residual(KeyId key) {
  require_open("residual");
  std::vector<float> values(elements_of(key));
  bool any = false;
  for (const Stretch& stretch : stretches(home_of(key), values.size())) {
    const auto out = std::span(values).subspan(stretch.key_offset, stretch.count);
    thread_
        ->between_rounds(
            {stretch.tensor},
            [&] { any |= thread_->residuals().read(stretch.tensor, stretch.tensor_offset, out); })
        .wait();
  }
  if (!any) values.clear();
  return values;
}

void Engine::set_residual(KeyId key, std::span<const float> values) {
  require_size("set_residual", key, values.size());
  const auto wrong = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (wrong != values.end() && !keeps_nonfinite(key)) {
    throw std::invalid_argument(
        fmt::format("set_residual: element {} of key {} is {}, expected a finite number; only a codec with "
                    "nonfinite=mxnet keeps others",
                    wrong - values.begin(), key, *wrong));
  }
  write_residual(key, values);
}

/// Whether NaN may stay in a key's residual; false where this rank keeps none.
bool Engine::keeps_nonfinite(KeyId key) const {
  bool keeps = false;
  for (const Stretch& stretch : stretches(home_of(key), 1)) {
    thread_
        ->between_rounds({stretch.tensor},
                         [&] { keeps = thread_->residuals().keeps_nonfinite(stretch.tensor); })
        .wait();
  }
  return keeps;
}

void Engine::write_residual(KeyId key, std::span<const float> values) {
  for (const Stretch& stretch : stretches(home_of(key), values.size())) {
    const auto part = values.subspan(stretch.key_offset, stretch.count);
    thread_
        ->between_rounds({stretch.tensor},
                         [&] { thread_->residuals().write(stretch.tensor, stretch.tensor_offset, part); })
        .wait();
  }
}

void Engine::add_to_residual(KeyId key, std::span<const float> values) {
  require_size("add_to_residual", key, values.size());
  if (hierarchy_ && !hierarchy_->leads()) return;
  const auto workers = hierarchy_ ? static_cast<float>(hierarchy_->workers_here()) : 1.0F;
  for (const Stretch& stretch : stretches(home_of(key), values.size())) {
    const auto part = values.subspan(stretch.key_offset, stretch.count);
    thread_
        ->between_rounds(
            {stretch.tensor},
            [&] { thread_->residuals().add(stretch.tensor, stretch.tensor_offset, part, workers); })
        .wait();
  }
}

void Engine::keep_rollback(bool keep) {
  require_open("keep_rollback");
  thread_->post([&residuals = thread_->residuals(), keep] { residuals.keep_rollback(keep); });
}

void Engine::roll_back(std::span<const KeyId> keys) {
  require_open("roll_back");
  std::set<KeyId> tensors;
  for (const KeyId key : keys) {
    for (const Stretch& stretch : stretches(home_of(key), elements_of(key))) tensors.insert(stretch.tensor);
  }
  const std::vector<KeyId> rolled(tensors.begin(), tensors.end());
  thread_->between_rounds(rolled, [&] { thread_->residuals().roll_back(rolled); }).wait();
}

/// Moves the residuals of slots that have just been bound to where they travel now.
void Engine::take_residuals_along(const Slots& slots) {
  std::map<KeyId, Home> homes;
  for (const Slots::Slot& slot : slots.slots) homes[slot.key] = {slot.key, 0};
  for (std::size_t bucket = 0; bucket < slots.fused.size(); ++bucket) {
    if (slots.fused[bucket].together == nullptr) continue;
    std::uint64_t offset = 0;
    for (const std::uint32_t slot : slots.layout.buckets[bucket].slots) {
      homes[slots.slots[slot].key] = {slots.fused[bucket].together->key, offset};
      offset += slots.slots[slot].values.size();
    }
  }
  std::vector<std::pair<KeyId, std::vector<float>>> moved;
  for (const auto& [key, home] : homes) {
    if (home == home_of(key)) continue;
    if (auto values = residual(key); !values.empty()) {
      write_residual(key, std::vector<float>(values.size()));  // there it would be sent a second time
      moved.emplace_back(key, std::move(values));
    }
    homes_[key] = home;
  }
  for (const auto& [key, values] : moved) write_residual(key, values);
}

}  // namespace gradwire::kvstore
