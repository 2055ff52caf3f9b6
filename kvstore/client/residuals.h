// Residuals reads and changes what codecs have not sent yet of a worker's tensors. With rollback, a residual
// can be restored to its state before its tensor's last round.
//
// Threading: one owner, which calls it between rounds of the tensors that a call is about.
#pragma once

#include <cstdint>
#include <span>

#include "compress/share_sent.h"
#include "kvstore/client/tensor_table.h"

namespace gradwire::kvstore {

class Residuals {
 public:
  /// tensors outlives this.
  explicit Residuals(TensorTable& tensors) : tensors_(tensors) {}

  /// Copies the residual from offset on to out; false where there is none, and out is as it was.
  bool read(KeyId key, std::uint64_t offset, std::span<float> out) const;
  /// Replaces it from offset on; where there was none, the rest is 0. No-op where tensors keep none.
  void write(KeyId key, std::uint64_t offset, std::span<const float> values);
  /// Adds values times scale to it, likewise.
  void add(KeyId key, std::uint64_t offset, std::span<const float> values, float scale);
  /// Whether the key's codec lets NaN stay in it.
  bool keeps_nonfinite(KeyId key) const;
  /// The sum of the squares of all.
  double squares() const;
  /// What was measured last of all tensors that are compressed now.
  compress::ShareSent share() const;

  /// Keeps, from the next rounds on, what roll_back() needs. At any time.
  void keep_rollback(bool keep);
  /// Called when a push begins that may change the residual.
  void keep_what_was(Tensor& tensor) const;
  /// Puts residuals and agreed scales back. No-op for keys of which nothing was kept since the last time.
  void roll_back(std::span<const KeyId> keys);
  /// Gives up residuals, agreed scales and what was kept for a rollback, unless a round is in progress.
  void discard(std::span<const KeyId> keys);

 private:
  TensorTable& tensors_;
  bool keeps_rollback_ = false;
};

}  // namespace gradwire::kvstore
