// Where the fields of a payload or reply with agreed scales lie: head, one header per unit, body.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "compress/codec.h"
#include "compress/payload/host_device.h"
#include "compress/payload/little_endian.h"

namespace gradwire::compress::two_bit {

/// What the body of a payload or reply holds. Part of the wire format, never renumber.
enum class Form : std::uint32_t { kDense = 0, kCodes = 1 };

inline constexpr std::size_t kHeadBytes = 8;   // form, units
inline constexpr std::size_t kUnitBytes = 16;  // one header per unit

/// Header of a payload's unit.
struct PayloadUnit {
  float level = 0;
  float sum_all = 0;       ///< of |x|
  float sum_selected = 0;  ///< of |x| over sent elements
  std::uint32_t selected_count = 0;
};

/// Header of a reply's unit.
struct ReplyUnit {
  float next_threshold = 0;
  float next_level = 0;
  float level = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(PayloadUnit) == kUnitBytes && sizeof(ReplyUnit) == kUnitBytes);

constexpr std::size_t unit_offset(std::size_t unit) { return kHeadBytes + unit * kUnitBytes; }

/// Bytes before the body of a run of `elements` elements.
constexpr std::size_t body_offset(std::size_t elements) { return unit_offset(unit_count(elements)); }

/// Elements of unit `unit` of a run of `elements` elements.
constexpr std::size_t unit_elements(std::size_t elements, std::size_t unit) {
  return std::min(std::size_t{kUnitElements}, elements - unit * kUnitElements);
}

template <typename Unit>
GRADWIRE_HOST_DEVICE Unit load_unit(const std::byte* bytes, std::size_t unit) noexcept {
  return load<Unit>(bytes + unit_offset(unit));
}

GRADWIRE_HOST_DEVICE inline Form form_of(const std::byte* bytes) noexcept {
  return static_cast<Form>(load<std::uint32_t>(bytes));
}

GRADWIRE_HOST_DEVICE inline void write_head(Form form, std::size_t elements, std::byte* out) noexcept {
  store(static_cast<std::uint32_t>(form), out);
  store(static_cast<std::uint32_t>(unit_count(elements)), out + sizeof(std::uint32_t));
}

/// What levels, thresholds and sums on the wire must be.
GRADWIRE_HOST_DEVICE inline bool finite_and_not_negative(float value) noexcept {
  return std::bit_cast<std::uint32_t>(value) < 0x7f800000;
}

}  // namespace gradwire::compress::two_bit
