// StoredRows holds the rows of a table that were ever written; all others are zero and take no memory. So a
// residual, a weight or an optimizer's state takes memory by the rows that were touched, and not by the size
// that a peer claims for a table.
//
// Threading: one thread at a time. Lifetime: spans stay valid until clear() or the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace gradwire::kvstore {

class StoredRows {
 public:
  /// Requires row_elements >= 1.
  explicit StoredRows(std::size_t row_elements);

  /// The row, which is zeros where it is new.
  std::span<float> at(std::uint64_t id);
  /// The row; empty where it was never written.
  std::span<const float> find(std::uint64_t id) const;
  /// Ids of all rows, ascending.
  std::vector<std::uint64_t> ids() const;
  std::size_t size() const { return places_.size(); }
  std::size_t row_elements() const { return row_elements_; }
  void clear();

 private:
  std::span<float> row(std::size_t place) const;

  std::size_t row_elements_;
  std::size_t rows_in_block_;
  std::unordered_map<std::uint64_t, std::size_t> places_;  ///< by id
  std::vector<std::unique_ptr<float[]>> blocks_;           ///< so that rows never move
};

}  // namespace gradwire::kvstore
