// Residual is what codecs have not sent yet of one tensor, by element offset. It is kept in float32, or in
// bfloat16, which halves its memory.
//
// Threading: as a std::vector. The runs of several parts may be changed side by side.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "kvstore/array_view.h"
#include "kvstore/release_memory.h"

namespace gradwire::kvstore {

class Residual {
 public:
  /// Of no elements yet. Requires kFloat32 or kBfloat16.
  explicit Residual(ElementType type = ElementType::kFloat32) : type_(type) {}

  bool empty() const noexcept { return bytes_.empty(); }
  ArrayView view() noexcept { return {type_, bytes_}; }
  ConstArrayView view() const noexcept { return {type_, bytes_}; }
  /// A copy, widened.
  std::vector<float> floats() const;
  /// Gives all of it in float32, run by run.
  void visit(const std::function<void(std::span<const float>)>& visit) const;
  /// Whether nothing is left in it.
  bool is_all_sent() const;

  void assign_zeros(std::size_t elements) { bytes_.assign(elements * transport::bytes_of(type_), {}); }
  /// Replaces all of it, as round_residual() does.
  void assign(std::span<const float> values);
  /// Gives its memory up.
  void clear() { release_memory(bytes_); }

 private:
  ElementType type_;
  std::vector<std::byte> bytes_;  // from the heap, whose blocks are aligned for floats
};

/// Writes values to a run of a residual, each rounded to nearest, ties to even. A finite value beyond
/// bfloat16 becomes its largest, so that a finite residual stays finite. Requires equal sizes.
void round_residual(std::span<const float> values, ArrayView run);

}  // namespace gradwire::kvstore
