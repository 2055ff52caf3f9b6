// The values that a device encodes or decodes: floats, or payloads that are summed on the way.
//
// A source is a small value that a kernel copies. four(first, count) gives the elements of one item: what
// Codec::decode_sum() writes there, added in rank order.
//
// Threading: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compress/dense/dense_scalar.h"
#include "compress/device/device_codec.h"
#include "compress/device/four_elements.h"
#include "compress/payload/host_device.h"
#include "compress/two_bit/two_bit_auto_layout.h"
#include "compress/two_bit/two_bit_scalar.h"

namespace gradwire::compress {

/// Payloads at equal distances, as DevicePayloads, without what only a host may touch.
struct PayloadBlock {
  const std::byte* first;
  std::size_t stride;
  std::size_t ways;

  GRADWIRE_HOST_DEVICE const std::byte* at(std::size_t way) const noexcept { return first + way * stride; }
};

/// Names the payloads of a call for a kernel.
inline PayloadBlock block_of(const DevicePayloads& payloads) noexcept {
  return {payloads.device, payloads.stride, payloads.host.size()};
}
inline PayloadBlock block_of(const DevicePayload& payload) noexcept { return {payload.device, 0, 1}; }

struct FloatSource {
  const float* values;
  bool whole;

  explicit FloatSource(const float* floats) noexcept : values(floats), whole(moves_whole(floats)) {}

  GRADWIRE_HOST_DEVICE Four four(std::size_t first, std::size_t count) const noexcept {
    return load_four(values + first, count, whole);
  }
};

/// The elements of one item, added up over the source's payloads in float: ((p0 + p1) + p2) + ...
template <typename Source>
GRADWIRE_HOST_DEVICE Four sum_of_payloads(const Source& source, std::size_t first,
                                          std::size_t count) noexcept {
  Four sum = source.payload_four(0, first, count);
  for (std::size_t way = 1; way < source.payloads.ways; ++way) {
    const Four next = source.payload_four(way, first, count);
    for (std::size_t j = 0; j < kItemElements; ++j) sum.x[j] += next.x[j];
  }
  return sum;
}

/// ((p0 + p1) + p2) + ... in float; the elements start `offset` bytes into every payload.
struct DenseSumSource {
  dense::Format format;
  PayloadBlock payloads;
  std::size_t offset;

  GRADWIRE_HOST_DEVICE Four payload_four(std::size_t way, std::size_t first,
                                         std::size_t count) const noexcept {
    const std::size_t width = dense::bytes_per_element(format);
    const auto four = dense::load_bits(width, payloads.at(way) + offset + first * width, count);
    Four floats;
    for (std::size_t j = 0; j < kItemElements; ++j)
      floats.x[j] = dense::float_from_bits(format, four.bits[j]);
    return floats;
  }

  GRADWIRE_HOST_DEVICE Four four(std::size_t first, std::size_t count) const noexcept {
    return sum_of_payloads(*this, first, count);
  }
};

/// The level of each unit: one for all, or a float in each unit's header.
struct Levels {
  float fixed;
  const std::byte* in_headers = nullptr;  ///< the first unit's level

  GRADWIRE_HOST_DEVICE float at_unit(std::size_t unit) const noexcept {
    return in_headers == nullptr ? fixed : load_aligned<float>(in_headers + unit * two_bit::kUnitBytes);
  }
  GRADWIRE_HOST_DEVICE float at_element(std::size_t i) const noexcept { return at_unit(i / kUnitElements); }
};

/// fl(k * level), k being the integer sum of an element's codes.
struct CodeSumSource {
  PayloadBlock payloads;
  std::size_t offset;
  Levels levels;

  GRADWIRE_HOST_DEVICE std::int32_t count_at(std::size_t i) const noexcept {
    std::int32_t sum = 0;
    for (std::size_t way = 0; way < payloads.ways; ++way)
      sum += two_bit::code_at(payloads.at(way) + offset, i);
    return sum;
  }
  GRADWIRE_HOST_DEVICE Four four(std::size_t first, std::size_t) const noexcept {
    std::int32_t sum[kItemElements] = {};
    for (std::size_t way = 0; way < payloads.ways; ++way) {
      const std::byte codes = payloads.at(way)[offset + first / kItemElements];
      for (std::size_t j = 0; j < kItemElements; ++j) sum[j] += two_bit::code_in(codes, j);
    }
    const float level = levels.at_element(first);
    Four floats;
    for (std::size_t j = 0; j < kItemElements; ++j) floats.x[j] = static_cast<float>(sum[j]) * level;
    return floats;
  }
};

/// Payloads with agreed scales of which some are dense and some hold codes, added in float.
struct MixedSumSource {
  PayloadBlock payloads;
  std::size_t offset;
  Levels levels;

  GRADWIRE_HOST_DEVICE Four payload_four(std::size_t way, std::size_t first,
                                         std::size_t count) const noexcept {
    const PayloadBlock one{payloads.at(way), 0, 1};
    if (two_bit::form_of(one.first) == two_bit::Form::kDense) {
      return DenseSumSource{dense::Format::kF32, one, offset}.four(first, count);
    }
    return CodeSumSource{one, offset, levels}.four(first, count);
  }
  GRADWIRE_HOST_DEVICE Four four(std::size_t first, std::size_t count) const noexcept {
    return sum_of_payloads(*this, first, count);
  }
};

}  // namespace gradwire::compress
