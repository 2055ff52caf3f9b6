// A lossless stage around 2-bit codes: quiet gradients are mostly zeros, and need far less than 2 bits.
//
// Threading: all functions are pure; they allocate nothing.
//
// Every codec unit takes the smallest of three forms. Its number of sent elements alone decides: the codes
// as they are, a bitmap of sent elements and their signs, or the positions of the sent elements, ascending,
// in the code of Elias and Fano. The layout is in compress/FORMAT.md, "Lossless stage".
//
// With p the share of sent elements the forms take 2, 1 + p, and at most p * (2 + ceil(log2(1/p))) + p bits
// an element. The smallest is within 1.19 of the entropy H(p) + p of independent elements whose signs are
// even, in whatever order the elements come. Signs take a bit each: if they all agree, that is p too much.
//
// Sources: Elias 1974, "Efficient storage and retrieval by content and address of static files"; Fano 1971.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/codec.h"

namespace gradwire::compress::lossless {

/// How the codes of one unit lie in the coded form. Part of the wire format, never renumber.
enum class Form : std::uint8_t {
  kRaw = 0,        ///< as 2bit has them
  kBitmap = 1,     ///< a bit an element: sent or not; then a bit a sent element: 1 for -
  kPositions = 2,  ///< Elias-Fano: upper parts in unary, then fixed-width lower parts with the sign
};

/// Bytes before the body of every unit: its form and how many of its elements are sent.
inline constexpr std::size_t kUnitHeadBytes = 4;

/// What one unit becomes.
struct UnitPlan {
  Form form = Form::kRaw;
  std::uint32_t low_bits = 0;  ///< kPositions: bits of a position that are not in unary
  std::size_t bytes = 0;       ///< of the body, after the unit's head
  bool operator==(const UnitPlan&) const = default;
};

/// The smallest form of `elements` elements of which `sent` are sent; of equal ones the first. Requires
/// 0 < elements <= kUnitElements and sent <= elements.
UnitPlan plan_unit(std::size_t elements, std::size_t sent) noexcept;

/// Largest coded form of that many elements: kUnitHeadBytes a unit more than the codes.
std::size_t max_coded_bytes(std::size_t elements) noexcept;

/// Writes the coded form of the codes of a run that starts on a unit boundary, and returns its bytes. A unit
/// with the code 01, or with bits beyond its last element, stays as it is: decode() gives back every byte.
/// Throws std::invalid_argument unless codes has two_bit::packed_bytes(elements) bytes and out at least
/// max_coded_bytes(elements).
std::size_t encode(std::span<const std::byte> codes, std::size_t elements, std::span<std::byte> out);

/// Throws DecodeError where coded is too short for a head for every unit: sizes computed from such an
/// `elements` may wrap, so ask this before making room for what decode() writes.
void require_room_for(Payload coded, std::size_t elements);

/// Writes the two_bit::packed_bytes(elements) bytes that encode() was given. Throws DecodeError for bytes
/// that no encode() writes; codes is then unspecified. Throws std::invalid_argument unless codes has that
/// size.
void decode(Payload coded, std::size_t elements, std::span<std::byte> codes);

}  // namespace gradwire::compress::lossless
