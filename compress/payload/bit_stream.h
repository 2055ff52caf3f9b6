// Fields of bits, one behind the other, the lowest bit of the first byte first.
//
// Threading: a reader only reads; a writer belongs to one thread. Neither allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compress/payload/little_endian.h"

namespace gradwire::compress {

constexpr std::size_t bytes_for_bits(std::size_t bits) { return (bits + 7) / 8; }

/// Reads 8 bytes, or the `available` that there are, zeros behind them.
inline std::uint64_t load_word(const std::byte* from, std::size_t available) noexcept {
  if (available >= sizeof(std::uint64_t)) return load<std::uint64_t>(from);
  std::uint64_t word = 0;
  std::memcpy(&word, from, available);
  return word;
}

/// Reads fields of bits out of `available` bytes; what lies behind them is 0.
class BitReader {
 public:
  BitReader(const std::byte* from, std::size_t available) noexcept : from_(from), available_(available) {}

  /// At least 57 bits from bit `at` on. Requires at / 8 <= available.
  std::uint64_t at(std::size_t at) const noexcept {
    return load_word(from_ + at / 8, available_ - at / 8) >> (at % 8);
  }

 private:
  const std::byte* from_;
  std::size_t available_;
};

/// Writes fields of up to 32 bits one behind the other, lowest bit first.
class BitWriter {
 public:
  explicit BitWriter(std::byte* out) noexcept : out_(out) {}

  void put(std::uint32_t value, unsigned width) noexcept {
    bits_ |= std::uint64_t{value} << used_;
    used_ += width;
    if (used_ < 32) return;
    store(static_cast<std::uint32_t>(bits_), out_);
    out_ += 4;
    bits_ >>= 32;
    used_ -= 32;
  }

  /// Writes what is left, up to a whole byte.
  void finish() noexcept { std::memcpy(out_, &bits_, bytes_for_bits(used_)); }

 private:
  std::byte* out_;
  std::uint64_t bits_ = 0;
  unsigned used_ = 0;
};

}  // namespace gradwire::compress
