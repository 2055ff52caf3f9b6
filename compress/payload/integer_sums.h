// IntegerSums is an ability of a codec whose codes are integers. A library that adds integers (MPI, NCCL)
// may sum a round, and the answer has the bits of one made from the payloads.
//
// A payload is then a head, which is gathered because it cannot be added, and codes, each written as one
// integer.
//
// Threading and lifetime: as Codec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "compress/codec.h"

namespace gradwire::compress {

/// Bytes of one integer of a sum.
enum class IntegerWidth : std::uint8_t { kInt8 = 1, kInt16 = 2 };

constexpr std::size_t bytes_of(IntegerWidth width) noexcept { return static_cast<std::size_t>(width); }

/// The narrowest integers that hold every sum of `ways` codes of -1, 0 and 1; nothing: there are too many.
constexpr std::optional<IntegerWidth> integer_width(std::size_t ways) noexcept {
  if (ways <= std::numeric_limits<std::int8_t>::max()) return IntegerWidth::kInt8;
  if (ways <= std::numeric_limits<std::int16_t>::max()) return IntegerWidth::kInt16;
  return std::nullopt;
}

/// A round that a library has summed.
struct SummedRound {
  std::size_t ways = 0;
  std::span<const Payload> heads;   ///< by rank, of head_bytes() each; empty where that is 0
  std::span<const std::byte> sums;  ///< one integer an element
  IntegerWidth width = IntegerWidth::kInt8;
};

class IntegerSums {
 public:
  virtual ~IntegerSums() = default;
  IntegerSums(const IntegerSums&) = delete;
  IntegerSums& operator=(const IntegerSums&) = delete;

  /// Bits of a code in a payload.
  virtual std::size_t code_bits() const noexcept = 0;
  /// Bytes of every payload of codes that are gathered instead of summed: its head.
  virtual std::size_t head_bytes(std::size_t elements) const noexcept = 0;
  /// False where the payload holds no codes, so that it cannot be summed: the first round of agreed scales.
  /// Every worker's payload of a round is alike in this. Requires a payload that validate() passes.
  virtual bool holds_codes(Payload payload) const noexcept = 0;
  /// Writes the head. Requires a payload that holds_codes() and out.size() == head_bytes(elements).
  virtual void write_head(Payload payload, std::size_t elements, std::span<std::byte> out) const = 0;
  /// Writes every element's code. Requires the same, and out.size() == elements * bytes_of(width).
  virtual void expand(Payload payload, std::size_t elements, IntegerWidth width,
                      std::span<std::byte> out) const = 0;

  /// As Codec::decode_sum() of the payloads that were summed. Throws DecodeError for heads that do not go
  /// together and for sums that no codes have.
  virtual void decode_sum(const SummedRound& round, std::span<float> out) const = 0;
  /// As Codec::encode_reply() of the payloads that were summed, with its bytes and its residual. Throws as
  /// decode_sum().
  virtual Encoded encode_reply(const SummedRound& round, std::size_t elements, ReplyKind kind,
                               std::span<float> residual, std::span<std::byte> out) const = 0;

 protected:
  IntegerSums() = default;
};

}  // namespace gradwire::compress
