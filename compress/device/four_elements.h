// Four elements: the unit that one work item of a device reads or writes. Full items move as whole words,
// the last item of a run element by element.
//
// Threading: all functions are pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compress/dense/dense_scalar.h"
#include "compress/payload/host_device.h"

namespace gradwire::compress {

/// Elements of a work item, all in one codec unit.
inline constexpr std::size_t kItemElements = 4;

struct Four {
  float x[kItemElements];
};

constexpr std::size_t item_count(std::size_t elements) {
  return (elements + kItemElements - 1) / kItemElements;
}

/// Elements of the item that begins at element `first`.
constexpr std::size_t item_elements(std::size_t elements, std::size_t first) {
  return elements - first < kItemElements ? elements - first : kItemElements;
}

/// True when items of these floats may move as 16 bytes; null counts as such.
inline bool moves_whole(const float* floats) noexcept {
  return reinterpret_cast<std::uintptr_t>(floats) % sizeof(Four) == 0;
}

/// As load() and store(), at addresses that are multiples of the type's size: one access on a device.
template <typename T>
GRADWIRE_HOST_DEVICE T load_aligned(const void* from) noexcept {
  T value;
  std::memcpy(&value, __builtin_assume_aligned(from, sizeof(T)), sizeof value);
  return value;
}

template <typename T>
GRADWIRE_HOST_DEVICE void store_aligned(const T& value, void* to) noexcept {
  std::memcpy(__builtin_assume_aligned(to, sizeof(T)), &value, sizeof value);
}

/// Reads `count` floats, the rest as 0. `whole` is what moves_whole() said of the floats' first element.
GRADWIRE_HOST_DEVICE inline Four load_four(const float* from, std::size_t count, bool whole) noexcept {
  Four four{};
  if (whole && count == kItemElements) {
    // As two words: a compiler for devices makes one access of them, and sixteen of a memcpy() to floats.
    const auto* const bytes = static_cast<const std::byte*>(__builtin_assume_aligned(from, sizeof(Four)));
    const std::uint64_t words[] = {load_aligned<std::uint64_t>(bytes),
                                   load_aligned<std::uint64_t>(bytes + sizeof(std::uint64_t))};
    for (std::size_t j = 0; j < kItemElements; ++j) {
      four.x[j] = std::bit_cast<float>(static_cast<std::uint32_t>(words[j / 2] >> (j % 2 * 32)));
    }
    return four;
  }
  for (std::size_t j = 0; j < kItemElements; ++j) {
    if (j < count) four.x[j] = from[j];
  }
  return four;
}

GRADWIRE_HOST_DEVICE inline void store_four(const Four& four, std::size_t count, bool whole,
                                            float* to) noexcept {
  if (whole && count == kItemElements) return store_aligned(four, to);
  for (std::size_t j = 0; j < kItemElements; ++j) {
    if (j < count) to[j] = four.x[j];
  }
}

namespace dense {

/// The bits of four elements, each in the lowest bytes of its word.
struct FourBits {
  std::uint32_t bits[kItemElements];
};

/// Reads `count` elements of an item that begins at a multiple of kDeviceAlignment; the others are 0.
GRADWIRE_HOST_DEVICE inline FourBits load_bits(std::size_t width, const std::byte* from,
                                               std::size_t count) noexcept {
  FourBits four{};
  if (count == kItemElements && width == 2) {
    const auto word = load_aligned<std::uint64_t>(from);
    for (std::size_t j = 0; j < kItemElements; ++j) four.bits[j] = (word >> (16 * j)) & 0xffff;
  } else if (count == kItemElements) {
    for (std::size_t j = 0; j < kItemElements; j += 2) {
      const auto word = load_aligned<std::uint64_t>(from + 4 * j);
      four.bits[j] = static_cast<std::uint32_t>(word);
      four.bits[j + 1] = static_cast<std::uint32_t>(word >> 32);
    }
  } else {
    for (std::size_t j = 0; j < kItemElements; ++j) {
      if (j >= count) continue;
      four.bits[j] =
          width == 2 ? load_aligned<std::uint16_t>(from + 2 * j) : load_aligned<std::uint32_t>(from + 4 * j);
    }
  }
  return four;
}

GRADWIRE_HOST_DEVICE inline void store_bits(const FourBits& four, std::size_t width, std::size_t count,
                                            std::byte* to) noexcept {
  if (count == kItemElements && width == 2) {
    std::uint64_t word = 0;
    for (std::size_t j = 0; j < kItemElements; ++j) word |= std::uint64_t{four.bits[j]} << (16 * j);
    store_aligned(word, to);
  } else if (count == kItemElements) {
    for (std::size_t j = 0; j < kItemElements; j += 2) {
      store_aligned(std::uint64_t{four.bits[j + 1]} << 32 | four.bits[j], to + 4 * j);
    }
  } else {
    for (std::size_t j = 0; j < kItemElements; ++j) {
      if (j >= count) continue;
      if (width == 2) {
        store_aligned(static_cast<std::uint16_t>(four.bits[j]), to + 2 * j);
      } else {
        store_aligned(four.bits[j], to + 4 * j);
      }
    }
  }
}

}  // namespace dense
}  // namespace gradwire::compress
