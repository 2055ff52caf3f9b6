// ArrayView is a run of numbers, such as a caller's array, of any of the types that keys are pushed and
// pulled in. Sums are made in float32, or, of keys of float64, in float64; 16-bit floats are widened as they
// are read, and rounded as they are written.
//
// Threading and lifetime: as std::span.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>

#include "compress/dense/dense_scalar.h"
#include "transport/collective.h"

namespace gradwire::kvstore {

using transport::ElementType;

/// Of a type of floats: "float32" and so on.
std::string_view name_of(ElementType type);
/// The type of such a name. Throws std::invalid_argument.
ElementType float_type(std::string_view name);
/// How codecs name a type of 16 bits.
compress::dense::Format format_of(ElementType half);

/// Byte: std::byte, or const std::byte where the run is only read. Its type is one of floats.
template <typename Byte>
class BasicArrayView {
  template <typename T>
  using Like = std::conditional_t<std::is_const_v<Byte>, const T, T>;

 public:
  BasicArrayView() = default;
  template <typename Range>
  requires std::convertible_to<Range&&, std::span<Like<float>>> BasicArrayView(Range&& values)
      : BasicArrayView(std::span<Like<float>>(values), ElementType::kFloat32) {}
  template <typename Range>
  requires std::convertible_to<Range&&, std::span<Like<double>>> BasicArrayView(Range&& values)
      : BasicArrayView(std::span<Like<double>>(values), ElementType::kFloat64) {}
  /// Requires whole elements, aligned as a uint16_t, float or double is.
  BasicArrayView(ElementType type, std::span<Byte> bytes) : type_(type), bytes_(bytes) {}
  operator BasicArrayView<const std::byte>() const requires(!std::is_const_v<Byte>) {
    return {type_, bytes_};
  }

  ElementType type() const noexcept { return type_; }
  std::span<Byte> bytes() const noexcept { return bytes_; }
  std::size_t size() const noexcept { return bytes_.size() / transport::bytes_of(type_); }
  bool empty() const noexcept { return bytes_.empty(); }
  bool is_float32() const noexcept { return type_ == ElementType::kFloat32; }
  bool is_float64() const noexcept { return type_ == ElementType::kFloat64; }

  BasicArrayView subspan(std::size_t offset, std::size_t count) const {
    return {type_, bytes_.subspan(offset * transport::bytes_of(type_), count * transport::bytes_of(type_))};
  }
  /// Requires is_float32().
  std::span<Like<float>> floats() const noexcept {
    return {reinterpret_cast<Like<float>*>(bytes_.data()), size()};
  }
  /// Requires is_float64().
  std::span<Like<double>> doubles() const noexcept {
    return {reinterpret_cast<Like<double>*>(bytes_.data()), size()};
  }

 private:
  template <typename T>
  BasicArrayView(std::span<T> values, ElementType type)
      : type_(type), bytes_(reinterpret_cast<Byte*>(values.data()), values.size_bytes()) {}

  ElementType type_ = ElementType::kFloat32;
  std::span<Byte> bytes_;
};

using ArrayView = BasicArrayView<std::byte>;
using ConstArrayView = BasicArrayView<const std::byte>;

/// Writes the elements of one to the other, each rounded to nearest, ties to even. Requires equal sizes.
void copy_as_floats(ConstArrayView from, std::span<float> to);
void copy_floats(std::span<const float> from, ArrayView to);

}  // namespace gradwire::kvstore
