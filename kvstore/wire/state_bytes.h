// StateWriter and StateReader write and read states as bytes (FORMAT.md): integers, then arrays, one after
// the other, little endian and without padding.
//
// Threading: values.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "compress/codec.h"
#include "compress/payload/little_endian.h"
#include "transport/buffer.h"

namespace gradwire::kvstore {

class StateWriter {
 public:
  /// bytes: that will be put, if that is known; it saves copies.
  explicit StateWriter(std::size_t bytes = 0) { bytes_.reserve(bytes); }

  template <typename T>
  requires std::is_integral_v<T> StateWriter& put(T value) {
    return append(std::as_bytes(std::span(&value, 1)));
  }
  template <std::ranges::contiguous_range Array>
  StateWriter& put(const Array& array) {
    return append(std::as_bytes(std::span(array)));
  }

  std::vector<std::byte> bytes() && { return std::move(bytes_); }
  transport::Buffer buffer() && {
    auto owner = std::make_shared<std::vector<std::byte>>(std::move(bytes_));
    const std::span<std::byte> bytes(*owner);
    return {std::move(owner), bytes};
  }

 private:
  StateWriter& append(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }

  std::vector<std::byte> bytes_;
};

class StateReader {
 public:
  /// what: is read, to people. Throws compress::DecodeError where there are fewer bytes than a head has.
  StateReader(std::string_view what, std::span<const std::byte> bytes, std::size_t head_bytes)
      : what_(what), left_(bytes) {
    if (bytes.size() < head_bytes) {
      throw compress::DecodeError(
          fmt::format("{}: {} bytes given, expected at least {}", what, bytes.size(), head_bytes));
    }
  }

  /// Both throw compress::DecodeError where fewer bytes are left, before anything of that size is made.
  template <typename T>
  T get() {
    return compress::load<T>(next(1, sizeof(T)).data());
  }
  template <typename T>
  std::vector<T> array(std::uint64_t elements) {
    const auto bytes = next(elements, sizeof(T));
    std::vector<T> values(elements);
    std::ranges::copy(bytes, std::as_writable_bytes(std::span(values)).begin());
    return values;
  }
  std::size_t left() const { return left_.size(); }

 private:
  std::span<const std::byte> next(std::uint64_t elements, std::size_t width) {
    if (elements > left_.size() / width) {
      throw compress::DecodeError(
          fmt::format("{}: {} bytes are left for {} elements of {}", what_, left_.size(), elements, width));
    }
    const auto taken = left_.first(elements * width);
    left_ = left_.subspan(taken.size());
    return taken;
  }

  const std::string_view what_;
  std::span<const std::byte> left_;
};

}  // namespace gradwire::kvstore
