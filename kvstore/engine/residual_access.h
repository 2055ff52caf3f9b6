// ResidualAccess reads and changes what codecs have not sent yet. It is by key, whatever bucket a key
// travels in. No round of the key may be in progress. Where a host's workers sum first, the leader has the
// residual; others have none.
//
// Threading: any thread, unless a call says that it is a collective.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvstore/wire/key.h"

namespace gradwire::kvstore {

class Residuals;
class ServerStates;
struct EngineContext;
struct HeldPart;
struct Home;
struct Rows;

class ResidualAccess {
 public:
  /// Both outlive this.
  ResidualAccess(EngineContext& context, ServerStates& servers) : context_(context), servers_(servers) {}

  /// Returns a key's residual; empty where there is none yet.
  std::vector<float> of(KeyId key) const;
  /// The Euclidean norm of all of them together, and of those of rows, in one pass over their memory; nothing
  /// while a round is in progress, and after close().
  std::optional<double> norm() const;
  /// How much of what codecs were given they have sent (share_sent.h), over all keys that are compressed now,
  /// with a residual on the host, and tables, each in the last of its rounds that was measured. Nothing where
  /// there is none, while a round is in progress, and after close().
  std::optional<double> share_sent() const;
  /// Replaces it. Throws std::invalid_argument naming the first value that is not finite, unless the key's
  /// codec keeps such values (nonfinite=mxnet); nothing has changed then.
  void set(KeyId key, std::span<const float> values);
  /// Adds to it what a round brought and nobody used on any rank: all ranks call it with the same values,
  /// and each adds its part of their sum; where a host's workers sum first, the leader adds those of all.
  void add(KeyId key, std::span<const float> values);
  /// Has keys travel elsewhere, and moves their residuals along.
  void move(std::span<const std::pair<KeyId, Home>> homes);

  /// Keeps, from the next round on, what roll_back() needs: a second copy of every residual.
  void keep_rollback(bool keep);
  /// Puts the residuals and agreed scales of keys back to what they were before their last round, whose
  /// result nobody uses on any rank; all ranks call it. A server's residual (reply of the codec) stays. No-op
  /// for keys that have not had a round since the last time, or since keep_rollback(true).
  void roll_back(std::span<const KeyId> keys);
  /// Discards the residuals of keys that will not be pushed again, and those of keys in a bucket with them,
  /// so that they take no memory; all ranks call it. No-op for keys with a round in progress, and after
  /// close().
  void discard(std::span<const KeyId> keys);

  // Servers': what they have not sent yet of replies in a codec's own name.

  /// Of a key; empty where that is nothing. Throws std::invalid_argument while a round of it is under way.
  std::vector<float> of_servers(KeyId key) const;
  /// Of a table's rows.
  Rows of_servers_rows(std::uint64_t table) const;
  /// Takes it into the workers' residuals, so that nothing is lost with servers that end. A collective
  /// between steps, behind which nothing is pushed to them.
  void draw();

 private:
  using Writes = std::vector<std::function<void()>>;  ///< to this worker's residuals
  bool read_all(const std::function<void(const Residuals&)>& read) const;
  bool keeps_nonfinite(KeyId key) const;
  std::vector<KeyId> tensors_of(std::span<const KeyId> keys) const;
  void write(KeyId key, std::span<const float> values);
  void draw_part(const HeldPart& part, Writes& writes);
  void draw_rows(std::uint64_t table, std::span<const std::size_t> owners, Writes& writes);
  void append_rows(std::uint64_t table, std::size_t owner, Rows& rows) const;

  EngineContext& context_;
  ServerStates& servers_;
};

}  // namespace gradwire::kvstore
