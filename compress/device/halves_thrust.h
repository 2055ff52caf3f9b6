// Runs of floats and of 16-bit floats on a device, converted as dense/halves.h does on a host, on any Thrust
// backend.
//
// Threading and lifetime: as DeviceCodec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/dense/halves.h"
#include "compress/device/device_codec.h"
#include "compress/device/device_loader.h"
#include "compress/device/four_elements.h"
#include "compress/device/thrust_items.h"

namespace gradwire::compress {

inline constexpr std::size_t kHalfBytes = dense::bytes_per_element(dense::Format::kF16);

/// Whether items of these halves may move as 8 bytes.
inline bool halves_move_whole(const std::byte* halves) noexcept {
  return reinterpret_cast<std::uintptr_t>(halves) % (kItemElements * kHalfBytes) == 0;
}

struct WidenItem {
  dense::Format format;
  const std::byte* halves;
  float* out;
  std::size_t elements;
  bool whole_halves = halves_move_whole(halves);
  bool whole_floats = moves_whole(out);

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item * kItemElements;
    const std::size_t count = item_elements(elements, first);
    const std::byte* const from = halves + first * kHalfBytes;
    Four four{};
    if (whole_halves && count == kItemElements) {
      const auto bits = dense::load_bits(kHalfBytes, from, count);
      for (std::size_t j = 0; j < count; ++j) four.x[j] = dense::float_from_bits(format, bits.bits[j]);
    } else {
      for (std::size_t j = 0; j < count; ++j)
        four.x[j] = dense::float_from_bits(format, load_aligned<std::uint16_t>(from + j * kHalfBytes));
    }
    store_four(four, count, whole_floats, out + first);
  }
};

struct RoundToF16 {
  GRADWIRE_HOST_DEVICE std::uint16_t operator()(float value) const {
    return dense::ieee_f16_from_float(value);
  }
};
struct RoundToBf16 {
  GRADWIRE_HOST_DEVICE std::uint16_t operator()(float value) const {
    return dense::ieee_bf16_from_float(value);
  }
};
struct RoundResidual {
  GRADWIRE_HOST_DEVICE std::uint16_t operator()(float value) const {
    return dense::bf16_from_residual(value);
  }
};

template <typename Rule>
struct NarrowItem {
  FloatSource source;
  std::byte* out;
  std::size_t elements;
  Rule rule{};
  bool whole = halves_move_whole(out);

  GRADWIRE_HOST_DEVICE void operator()(std::size_t item) const {
    const std::size_t first = item * kItemElements;
    const std::size_t count = item_elements(elements, first);
    const Four four = source.four(first, count);
    std::byte* const to = out + first * kHalfBytes;
    if (whole && count == kItemElements) {
      dense::FourBits bits;
      for (std::size_t j = 0; j < count; ++j) bits.bits[j] = rule(four.x[j]);
      dense::store_bits(bits, kHalfBytes, count, to);
    } else {
      for (std::size_t j = 0; j < count; ++j) store_aligned(rule(four.x[j]), to + j * kHalfBytes);
    }
  }
};

/// As dense::floats_from_halves().
template <typename Backend>
void enqueue_floats_from_halves(const DeviceStream& stream, dense::Format format, const std::byte* halves,
                                std::span<float> out) {
  Backend backend(stream);
  backend.each(item_count(out.size()), WidenItem{format, halves, out.data(), out.size()});
}

template <typename Backend, typename Rule>
void enqueue_narrowing(const DeviceStream& stream, Rule rule, std::span<const float> values, std::byte* out) {
  Backend backend(stream);
  backend.each(item_count(values.size()),
               NarrowItem<Rule>{FloatSource(values.data()), out, values.size(), rule});
}

/// As dense::halves_from_floats().
template <typename Backend>
void enqueue_halves_from_floats(const DeviceStream& stream, dense::Format format,
                                std::span<const float> values, std::byte* out) {
  if (format == dense::Format::kF16) {
    enqueue_narrowing<Backend>(stream, RoundToF16{}, values, out);
  } else {
    enqueue_narrowing<Backend>(stream, RoundToBf16{}, values, out);
  }
}

/// As dense::bf16_from_residuals().
template <typename Backend>
void enqueue_bf16_from_residuals(const DeviceStream& stream, std::span<const float> values, std::byte* out) {
  enqueue_narrowing<Backend>(stream, RoundResidual{}, values, out);
}

}  // namespace gradwire::compress
