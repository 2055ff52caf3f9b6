#include "compress/two_bit/two_bit_integers.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "compress/payload/little_endian.h"
#include "compress/payload/payloads.h"
#include "compress/two_bit/two_bit_kernels.h"

// Plain loops, which compilers turn into vector code for any target: they are as fast as memory, or nearly.
namespace gradwire::compress::two_bit {
namespace {

constexpr std::size_t kIntegersTileElements = 4096;
constexpr std::size_t kCodesInByte = 4;

template <typename Integer>
using FourIntegers = std::array<Integer, kCodesInByte>;

/// The four codes of every byte, as integers.
template <typename Integer>
constexpr std::array<FourIntegers<Integer>, 256> make_table() {
  std::array<FourIntegers<Integer>, 256> table{};
  for (std::size_t byte = 0; byte < table.size(); ++byte) {
    for (std::size_t i = 0; i < kCodesInByte; ++i)
      table[byte][i] = static_cast<Integer>(code_in(static_cast<std::byte>(byte), i));
  }
  return table;
}

template <typename Integer>
void expand(const std::byte* packed, std::size_t elements, std::byte* out) noexcept {
  static constexpr auto kTable = make_table<Integer>();
  const std::size_t whole = elements / kCodesInByte;
  for (std::size_t b = 0; b < whole; ++b)
    store(kTable[std::to_integer<std::size_t>(packed[b])], out + b * sizeof kTable[0]);
  for (std::size_t i = whole * kCodesInByte; i < elements; ++i)
    store(static_cast<Integer>(code_at(packed, i)), out + i * sizeof(Integer));
}

template <typename Integer>
Integer value_at(const IntegerCodes& codes, std::size_t i) noexcept {
  return load<Integer>(codes.values + i * sizeof(Integer));
}

template <typename Integer>
void to_floats(const IntegerCodes& codes, std::size_t elements, float level, float* out) noexcept {
  for (std::size_t i = 0; i < elements; ++i) out[i] = static_cast<float>(value_at<Integer>(codes, i)) * level;
}

template <typename Integer>
std::int32_t largest_magnitude(const IntegerCodes& codes, std::size_t elements) noexcept {
  Integer least = 0;
  Integer most = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    least = std::min(least, value_at<Integer>(codes, i));
    most = std::max(most, value_at<Integer>(codes, i));
  }
  return std::max(-std::int32_t{least}, std::int32_t{most});
}

void bytes_to_planes(const IntegerCodes& codes, std::size_t elements, std::byte* out) noexcept {
  std::array<std::uint8_t, kIntegersTileElements> counts;
  for (std::size_t i = 0; i < elements; i += kIntegersTileElements) {
    const std::size_t length = std::min(kIntegersTileElements, elements - i);
    const IntegerCodes tile = codes.from_element(i);
    for (std::size_t j = 0; j < length; ++j)
      counts[j] = static_cast<std::uint8_t>(value_at<std::int8_t>(tile, j) + static_cast<int>(codes.ways));
    counts_to_planes(counts.data(), length, codes.ways, out);
    out += plane_bytes(length, codes.ways);
  }
}

}  // namespace

void expand_codes(const std::byte* packed, std::size_t elements, IntegerWidth width,
                  std::byte* out) noexcept {
  width == IntegerWidth::kInt8 ? expand<std::int8_t>(packed, elements, out)
                               : expand<std::int16_t>(packed, elements, out);
}

void sum_to_floats(const IntegerCodes& codes, std::size_t elements, float level, float* out) noexcept {
  codes.width == IntegerWidth::kInt8 ? to_floats<std::int8_t>(codes, elements, level, out)
                                     : to_floats<std::int16_t>(codes, elements, level, out);
}

void sum_to_planes(const IntegerCodes& codes, std::size_t elements, std::byte* out) noexcept {
  // Counts that fit a byte go through the vectors of counts_to_planes().
  if (codes.width == IntegerWidth::kInt8 && codes.ways <= kMaxByteWays)
    return bytes_to_planes(codes, elements, out);
  to_planes_scalar(elements, codes.ways, out, [&](std::size_t i) {
    const std::int32_t sum = codes.width == IntegerWidth::kInt8 ? value_at<std::int8_t>(codes, i)
                                                                : value_at<std::int16_t>(codes, i);
    return static_cast<std::uint32_t>(sum + static_cast<std::int32_t>(codes.ways));
  });
}

IntegerCodes checked_codes(const SummedRound& round, std::size_t elements) {
  expect_ways("2bit", round.ways);
  expect_bytes("2bit", "the sum", round.sums.size(), elements * bytes_of(round.width), elements);
  const IntegerCodes codes{round.sums.data(), round.width, round.ways};
  const std::int32_t largest = round.width == IntegerWidth::kInt8
                                   ? largest_magnitude<std::int8_t>(codes, elements)
                                   : largest_magnitude<std::int16_t>(codes, elements);
  // A library that saturates, or ranks that gave other arrays, are found here and not in the weights.
  if (largest > static_cast<std::int32_t>(round.ways)) {
    throw DecodeError("2bit: no " + std::to_string(round.ways) + " codes have the sum " +
                      std::to_string(largest) + " or its negative, which the library gave back");
  }
  return codes;
}

}  // namespace gradwire::compress::two_bit
