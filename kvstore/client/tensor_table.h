// TensorTable holds a worker's tensors, and knows the codec of each one's next round: the common one, or its
// own. Between rounds, what it keeps of a tensor can be read and replaced.
//
// Threading: one owner. Methods that need a tensor between rounds say so.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvstore/client/tensor.h"
#include "kvstore/client/tensor_state.h"
#include "kvstore/wire/compression.h"

namespace gradwire::kvstore {

/// How many rounds of a tensor the ranks have begun.
struct StepSpread {
  std::uint64_t least = 0;
  std::uint64_t most = 0;
};

class TensorTable {
 public:
  /// rank: the worker's. Workers encode a tensor's parts in turns, so that no server is asked by all at once.
  /// residual_type: in which tensors keep their residuals; none: they keep none.
  explicit TensorTable(std::uint32_t rank, std::optional<ElementType> residual_type = ElementType::kFloat32);

  /// Adds the next tensor. segments: of several that travel as one, the elements of each.
  Tensor& add(KeySpec spec, std::span<const Part> parts, std::vector<std::uint32_t> segments = {});
  std::size_t size() const { return tensors_.size(); }
  /// Requires key < size().
  Tensor& operator[](KeyId key) { return *tensors_[key]; }
  const Tensor& operator[](KeyId key) const { return *tensors_[key]; }
  std::span<const std::unique_ptr<Tensor>> all() const { return tensors_; }
  bool keeps_residuals() const { return residual_type_.has_value(); }

  /// Sets the codec of all tensors that have none of their own.
  void set_compression(std::shared_ptr<const Compression> compression);
  /// Sets the own one of some.
  void set_compression_of(std::span<const KeyId> keys, const std::shared_ptr<const Compression>& compression);
  const std::shared_ptr<const Compression>& compression_of(const Tensor& tensor) const {
    return tensor.own_compression ? tensor.own_compression : compression_;
  }
  /// What a round that begins now travels by: codec none takes keys of float64 in 64 bits; others take them
  /// in 32.
  std::shared_ptr<const Compression> compression_in_round(const Tensor& tensor) const;
  /// Whether the next round will travel as the one in flight does: another thread may have pushed while that
  /// was set.
  bool is_in_force(const Tensor& tensor) const;

  /// Has pulls ask servers again that last brought sums of float64: as weights they are rounded.
  void forget_sums_of_float64();

  // Between rounds.

  TensorState read(KeyId key) const;
  /// Scales that another codec has agreed are left: they are agreed anew.
  void write(KeyId key, const TensorState& state);
  /// How many rounds of each tensor have begun.
  std::vector<std::uint64_t> steps() const;
  /// Goes on from the most rounds that any rank has begun of each tensor. Where ranks differ, what they
  /// agreed on in the last one is void.
  void catch_up(std::span<const StepSpread> spreads);

 private:
  void renew_scales(Tensor& tensor, const Compression& before);
  void take_restored_scales(Tensor& tensor);

  const std::uint32_t rank_;
  const std::optional<ElementType> residual_type_;
  std::vector<std::unique_ptr<Tensor>> tensors_;    ///< by key; at one address while jobs work on them
  std::shared_ptr<const Compression> compression_;  // owners: this and jobs in the pool
  /// In the place of codec none, for keys of float64. Owners likewise.
  const std::shared_ptr<const Compression> none_of_float64_;
};

}  // namespace gradwire::kvstore
