#include "kvstore/engine/residual_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <string>

#include "kvstore/engine/engine_context.h"
#include "kvstore/engine/server_states.h"

namespace gradwire::kvstore {

std::vector<float> ResidualAccess::of(KeyId key) const {
  RoundThread& job = context_.rounds.job();
  std::vector<float> values(context_.keys.elements_of(key));
  bool any = false;
  for (const KeyRange& range : context_.keys.ranges_of(key)) {
    const auto out = std::span(values).subspan(range.key_offset, range.count);
    job.between_rounds(range.tensor,
                       [&] { any |= job.residuals().read(range.tensor, range.tensor_offset, out); });
  }
  // Zeros in part of a key are a residual, but none in any part is none.
  if (!any) values.clear();
  return values;
}

/// Reads those of all keys; returns false, and reads none, while a round is in progress, and after close().
bool ResidualAccess::read_all(const std::function<void(const Residuals&)>& read) const {
  if (!context_.rounds.is_open()) return false;
  RoundThread& job = context_.rounds.job();
  bool is_idle = false;
  job.between_rounds([&] {
    // On the thread of the rounds, so that none begins between the question and the reading.
    is_idle = job.is_idle();
    if (is_idle) read(job.residuals());
  });
  return is_idle;
}

std::optional<double> ResidualAccess::norm() const {
  double squares = 0;
  if (!read_all([&](const Residuals& residuals) { squares = residuals.squares(); })) return std::nullopt;
  if (context_.rows) squares += context_.rows->residual_squares();
  return std::sqrt(squares);
}

std::optional<double> ResidualAccess::share_sent() const {
  compress::ShareSent share;
  if (!read_all([&](const Residuals& residuals) { share = residuals.share(); })) return std::nullopt;
  if (context_.rows) share += context_.rows->share_sent();
  return share.is_known ? std::optional(share.value()) : std::nullopt;
}

void ResidualAccess::set(KeyId key, std::span<const float> values) {
  context_.keys.require_size("set_residual", key, values.size());
  const auto wrong = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (wrong != values.end() && !keeps_nonfinite(key)) {
    throw std::invalid_argument(
        fmt::format("set_residual: element {} of key {} is {}, expected a finite number; only a codec with "
                    "nonfinite=mxnet keeps others",
                    wrong - values.begin(), key, *wrong));
  }
  write(key, values);
}

/// Whether NaN may stay in a key's residual; false where this rank keeps none.
bool ResidualAccess::keeps_nonfinite(KeyId key) const {
  RoundThread& job = context_.rounds.job();
  bool keeps = false;
  // One element is enough: all parts of a key have one codec.
  for (const KeyRange& range : context_.rounds.ranges(context_.keys.home_of(key), 1)) {
    job.between_rounds(range.tensor, [&] { keeps = job.residuals().keeps_nonfinite(range.tensor); });
  }
  return keeps;
}

void ResidualAccess::write(KeyId key, std::span<const float> values) {
  RoundThread& job = context_.rounds.job();
  for (const KeyRange& range : context_.keys.ranges_of(key)) {
    const auto part = values.subspan(range.key_offset, range.count);
    job.between_rounds(range.tensor, [&] { job.residuals().write(range.tensor, range.tensor_offset, part); });
  }
}

void ResidualAccess::add(KeyId key, std::span<const float> values) {
  context_.keys.require_size("add_to_residual", key, values.size());
  const Hierarchy* const hierarchy = context_.rounds.hierarchy();
  if (hierarchy != nullptr && !hierarchy->leads()) return;
  // Every worker has the same values, and the leader is the only one of its host with a residual.
  const auto workers = hierarchy != nullptr ? static_cast<float>(hierarchy->workers_here()) : 1.0F;
  RoundThread& job = context_.rounds.job();
  for (const KeyRange& range : context_.keys.ranges_of(key)) {
    const auto part = values.subspan(range.key_offset, range.count);
    job.between_rounds(range.tensor,
                       [&] { job.residuals().add(range.tensor, range.tensor_offset, part, workers); });
  }
}

void ResidualAccess::move(std::span<const std::pair<KeyId, Home>> homes) {
  std::vector<std::pair<KeyId, std::vector<float>>> moved;
  for (const auto& [key, home] : homes) {
    if (home == context_.keys.home_of(key)) continue;
    if (auto values = of(key); !values.empty()) {
      write(key, std::vector<float>(values.size()));  // there it would be sent a second time
      moved.emplace_back(key, std::move(values));
    }
    context_.keys.set_home(key, home);
  }
  // After all have left their old places: a key may move to where another one was.
  for (const auto& [key, values] : moved) write(key, values);
}

void ResidualAccess::keep_rollback(bool keep) {
  context_.rounds.require_open("keep_rollback");
  RoundThread& job = context_.rounds.job();
  job.post([&residuals = job.residuals(), keep] { residuals.keep_rollback(keep); });
}

void ResidualAccess::roll_back(std::span<const KeyId> keys) {
  context_.rounds.require_open("roll_back");
  const std::vector<KeyId> rolled = tensors_of(keys);
  RoundThread& job = context_.rounds.job();
  job.between_rounds(rolled, [&] { job.residuals().roll_back(rolled); });
}

void ResidualAccess::discard(std::span<const KeyId> keys) {
  if (!context_.rounds.is_open()) return;
  RoundThread& job = context_.rounds.job();
  job.post([&residuals = job.residuals(), discarded = tensors_of(keys)] { residuals.discard(discarded); });
}

/// What keys travel in, each once: keys of one bucket share a tensor.
std::vector<KeyId> ResidualAccess::tensors_of(std::span<const KeyId> keys) const {
  std::set<KeyId> tensors;
  for (const KeyId key : keys) {
    for (const KeyRange& range : context_.keys.ranges_of(key)) tensors.insert(range.tensor);
  }
  return {tensors.begin(), tensors.end()};
}

// ------------------------------------------------------------------------------------- servers'

std::vector<float> ResidualAccess::of_servers(KeyId key) const {
  context_.rounds.require_open("server_residual");
  std::vector<float> residual;
  for (const HeldPart& part : servers_.parts()) {
    if (part.key != key) continue;
    const std::vector<float> theirs = servers_.residual_of(part);
    if (theirs.empty()) continue;
    // Parts without a residual count as zeros if another part of the key has one.
    residual.resize(context_.keys.elements_of(key));
    std::ranges::copy(theirs, residual.begin() + static_cast<std::ptrdiff_t>(part.offset));
  }
  return residual;
}

Rows ResidualAccess::of_servers_rows(std::uint64_t table) const {
  Rows rows;
  for (std::size_t owner = 0; owner < context_.require_rows().owners(table); ++owner)
    append_rows(table, owner, rows);
  return rows;
}

void ResidualAccess::append_rows(std::uint64_t table, std::size_t owner, Rows& rows) const {
  context_.rows->read_server_state(table, owner, [&](const RowState& piece) {
    rows.ids.insert(rows.ids.end(), piece.residuals.ids.begin(), piece.residuals.ids.end());
    rows.values.insert(rows.values.end(), piece.residuals.values.begin(), piece.residuals.values.end());
  });
}

/// Each part's by one of those who push: whose residual it adds to does not matter to the sum.
/// Reads all before it writes any: where a rank cannot read, no rank has drawn what servers still owe.
void ResidualAccess::draw() {
  context_.require_between_steps("draw_residuals");
  Writes writes;
  context_.meeting.attempt("residuals are drawn", [&] {
    const auto pushing = context_.rounds.contributors();
    const auto parts = servers_.parts();
    for (std::size_t turn = 0; turn < parts.size(); ++turn) {
      // By turns, so that the parts' residuals are drawn by all ranks at the same time.
      if (pushing[turn % pushing.size()] == context_.rank()) draw_part(parts[turn], writes);
    }
    const std::size_t count = context_.tables().size();
    for (std::uint64_t table = 0, turn = 0; table < count; ++table) {
      std::vector<std::size_t> owners;
      for (std::size_t owner = 0; owner < context_.rows->owners(table); ++owner) {
        if (turn++ % context_.workers() == context_.rank()) owners.push_back(owner);
      }
      draw_rows(table, owners, writes);
    }
    return std::string();
  });
  // Behind the attempt, which has failed on all ranks if one could not read.
  for (const auto& write : writes) write();
}

void ResidualAccess::draw_part(const HeldPart& part, Writes& writes) {
  const std::vector<float> theirs = servers_.residual_of(part);
  if (theirs.empty()) return;
  RoundThread& job = context_.rounds.job();
  std::vector<float> own(part.count);
  job.between_rounds(part.tensor, [&] { job.residuals().read(part.tensor, part.tensor_offset, own); });
  for (std::size_t i = 0; i < own.size(); ++i) own[i] += theirs[i];
  writes.emplace_back([&job, part, own = std::move(own)] {
    job.between_rounds(part.tensor, [&] { job.residuals().write(part.tensor, part.tensor_offset, own); });
  });
}

void ResidualAccess::draw_rows(std::uint64_t table, std::span<const std::size_t> owners, Writes& writes) {
  if (owners.empty()) return;
  Rows residual = context_.rows->residual(table);
  for (const std::size_t owner : owners) append_rows(table, owner, residual);
  writes.emplace_back([this, table, residual = std::move(residual)] {
    const std::vector<std::int64_t> ids(residual.ids.begin(), residual.ids.end());
    context_.rows->set_residual(table, ids, residual.values);
  });
}

}  // namespace gradwire::kvstore
