#include "compress/payload/scales.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "compress/payload/float_bits.h"
#include "compress/payload/little_endian.h"
#include "compress/payload/parameters.h"

namespace gradwire::compress {

std::string wrong_scale(std::span<const std::byte> scales, std::size_t count, std::string_view of) {
  const bool are_halves = scales.size() == count * sizeof(std::uint16_t);
  const auto bits_of = [&](std::size_t i) {
    return are_halves ? std::uint32_t{load<std::uint16_t>(&scales[2 * i])} << 16
                      : load<std::uint32_t>(&scales[4 * i]);
  };
  std::uint32_t most = 0;  // the sign is the highest bit, so what is negative is above infinity
  for (std::size_t i = 0; i < count; ++i) most = std::max(most, bits_of(i));
  if (most < kInfinityBits) return {};
  std::size_t wrong = 0;
  while (bits_of(wrong) < kInfinityBits) ++wrong;
  const auto scale = static_cast<double>(std::bit_cast<float>(bits_of(wrong)));
  return "the scale of " + std::string(of) + " " + std::to_string(wrong) + " is " + parameter_text(scale) +
         ", expected a finite number of at least 0";
}

}  // namespace gradwire::compress
