// Random numbers by counting: a counter and a key give the same numbers on every processor and in any order.
// So nothing has to be kept or sent.
//
// Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", Philox4x32-10.
//
// Threading: all functions are pure.
#pragma once

#include <array>
#include <cstdint>

#include "compress/payload/host_device.h"

namespace gradwire::compress::philox {

using Counter = std::array<std::uint32_t, 4>;
using Key = std::array<std::uint32_t, 2>;

inline constexpr int kRounds = 10;
inline constexpr std::uint32_t kMultiplier0 = 0xd2511f53;
inline constexpr std::uint32_t kMultiplier1 = 0xcd9e8d57;
inline constexpr std::uint32_t kWeyl0 = 0x9e3779b9;
inline constexpr std::uint32_t kWeyl1 = 0xbb67ae85;

/// The purpose of a draw: the second word of the key, so that codecs with the same seed draw different
/// numbers. Part of the payload format, never renumber.
enum class Stream : std::uint32_t { kDither = 0, kRandomK = 1 };

/// Four random words.
GRADWIRE_HOST_DEVICE inline Counter draw(Counter counter, Key key) noexcept {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

}  // namespace gradwire::compress::philox
