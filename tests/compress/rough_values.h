// Inputs that a codec meets on bad days, and how to compare what it makes of them.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

namespace gradwire::compress {

/// A threshold whose neighbours are among the rough values.
inline constexpr float kRoughThreshold = 0.3f;

/// Gaussian values with every special float strewn in; about one in `rarity` is special.
inline std::vector<float> rough_values(std::size_t elements, unsigned seed, unsigned rarity) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float specials[] = {std::numeric_limits<float>::quiet_NaN(),
                            kInf,
                            -kInf,
                            0.0f,
                            -0.0f,
                            1e-40f,
                            -1e-40f,
                            kRoughThreshold,
                            -kRoughThreshold,
                            std::nextafter(kRoughThreshold, 0.0f),
                            std::nextafter(kRoughThreshold, kInf),
                            std::nextafter(-kRoughThreshold, 0.0f),
                            std::nextafter(-kRoughThreshold, -kInf),
                            3e38f,
                            -3e38f,
                            std::numeric_limits<float>::max()};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.4f);
  std::vector<float> all(elements);
  for (float& value : all)
    value = random() % rarity == 0 ? specials[random() % std::size(specials)] : normal(random);
  return all;
}

inline std::vector<std::byte> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() & 0xff);
  return bytes;
}

/// Bits of floats; every NaN reads as one value, since which operand's NaN an addition keeps is the
/// processor's.
inline std::vector<std::uint32_t> bits(const std::vector<float>& floats) {
  std::vector<std::uint32_t> all;
  for (float f : floats) all.push_back(std::isnan(f) ? 0x7fc00000 : std::bit_cast<std::uint32_t>(f));
  return all;
}

}  // namespace gradwire::compress
