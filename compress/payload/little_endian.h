// Reads and writes the fixed-width values of a payload, which has no alignment.
//
// Threading: all functions are pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compress/payload/host_device.h"

namespace gradwire::compress {

static_assert(std::endian::native == std::endian::little,
              "payloads are little endian and are copied as they lie");

template <typename T>
GRADWIRE_HOST_DEVICE inline T load(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
GRADWIRE_HOST_DEVICE inline void store(T value, std::byte* to) noexcept {
  std::memcpy(to, &value, sizeof value);
}

}  // namespace gradwire::compress
