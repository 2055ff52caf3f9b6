// The 2-bit rules element by element: the specification of two_bit_kernels, on every target byte for byte.
//
// Source: MXNet's gradient compression (kvstore, 1.0 to 1.9.1) for the codes, their packing and the residual.
// Ours: a level apart from the threshold, the sums that agreed scales need, integer sums in bit planes.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "compress/codec.h"
#include "compress/dense/dense_scalar.h"
#include "compress/payload/float_bits.h"
#include "compress/payload/host_device.h"
#include "compress/payload/little_endian.h"
#include "compress/two_bit/unit_sums.h"

namespace gradwire::compress::two_bit {

/// What becomes of an element whose gradient + residual is NaN or infinite.
enum class NonFinite : std::uint8_t {
  kSkip,   ///< sends 0, keeps the residual it had, is reported
  kMxnet,  ///< follows the plain rule as MXNet does: the residual is NaN or infinite from then on
};

/// What a user wants done around payloads. It concerns the sender, not the codec.
enum class Stage : std::uint8_t { kNone, kLossless };

/// When an element is sent and what it then stands for.
struct Quantiser {
  float threshold = 0;  ///< sent when |x| >= threshold
  float level = 0;      ///< subtracted from x when sent; a level that is not above 0 sends nothing
  NonFinite nonfinite = NonFinite::kSkip;

  /// The threshold that also holds "no level, nothing sent".
  GRADWIRE_HOST_DEVICE float effective_threshold() const noexcept {
    return level > 0 ? threshold : std::numeric_limits<float>::infinity();
  }
};

/// Payloads whose counts k + ways fit one byte; more ways take the scalar form everywhere.
inline constexpr std::size_t kMaxByteWays = 127;

/// Bits of a code in a payload.
inline constexpr std::size_t kCodeBits = 2;

/// Elements in a group of bit planes.
inline constexpr std::size_t kPlaneGroup = 64;

constexpr std::size_t packed_bytes(std::size_t elements) { return (elements + 15) / 16 * 4; }

/// ceil(log2(2 * ways + 1)): bits of a count in [0, 2 * ways].
constexpr std::size_t count_bits(std::size_t ways) {
  std::size_t bits = 0;
  while ((std::size_t{1} << bits) < 2 * ways + 1) ++bits;
  return bits;
}

constexpr std::size_t plane_bytes(std::size_t elements, std::size_t ways) {
  return (elements + kPlaneGroup - 1) / kPlaneGroup * 8 * count_bits(ways);
}

/// The code of x: 11 sends +level, 10 sends -level, 00 nothing.
GRADWIRE_HOST_DEVICE inline unsigned code_of(float x, float threshold) noexcept {
  return x >= threshold ? 3 : x <= -threshold ? 2 : 0;
}

/// What x keeps once its code is sent.
GRADWIRE_HOST_DEVICE inline float rest_of(float x, unsigned code, float level) noexcept {
  return code == 3 ? x - level : code == 2 ? x + level : x;
}

/// The code of element i % 4 of a byte, in its place: element 0 is the two most significant bits.
constexpr unsigned code_shift(std::size_t i) { return static_cast<unsigned>(6 - 2 * (i % 4)); }

/// Level of a reply in codes to `ways` payloads of a fixed threshold: the largest sum that they can have, so
/// one code can always take it away.
inline float reply_level(float threshold, std::size_t ways) noexcept {
  return std::min(static_cast<float>(ways) * threshold, std::numeric_limits<float>::max());
}

/// Reads the code of element i of its byte: +1, -1 or 0. 11 is +1, 10 is -1, 00 is 0, and so is 01, which no
/// encoder writes.
GRADWIRE_HOST_DEVICE constexpr int code_in(std::byte four, std::size_t i) noexcept {
  const unsigned code = std::to_integer<unsigned>(four) >> code_shift(i) & 3;
  return code == 3 ? 1 : code == 2 ? -1 : 0;
}

GRADWIRE_HOST_DEVICE inline int code_at(const std::byte* packed, std::size_t i) noexcept {
  return code_in(packed[i / 4], i);
}

/// Encodes x = residual + grad (x = grad when residual is null) and keeps x - sent. Writes
/// packed_bytes(elements) bytes, absent elements as 00. Adds to the lanes of a block, whose element `first`
/// is the first of these, unless lanes is null. Returns true when a non-finite x was found.
inline bool encode_block_scalar(const float* grad, float* residual, std::size_t elements,
                                const Quantiser& quantiser, std::byte* out, BlockLanes* lanes,
                                std::size_t first = 0) noexcept {
  const float threshold = quantiser.effective_threshold();
  bool nonfinite = false;
  std::fill_n(out, packed_bytes(elements), std::byte{0});
  for (std::size_t i = 0; i < elements; ++i) {
    const float x = residual == nullptr ? grad[i] : residual[i] + grad[i];
    const bool finite = is_finite(x);
    nonfinite |= !finite;
    if (!finite && quantiser.nonfinite == NonFinite::kSkip) continue;
    const unsigned code = code_of(x, threshold);
    out[i / 4] |= static_cast<std::byte>(code << code_shift(i));
    if (residual != nullptr) residual[i] = rest_of(x, code, quantiser.level);
    if (lanes != nullptr) lanes->add(first + i, magnitude(x), code != 0);
  }
  return nonfinite;
}

/// The same of elements that begin a block of a unit, whose sums are appended unless sums is null. All calls
/// but a unit's last are of whole blocks.
inline bool encode_scalar(const float* grad, float* residual, std::size_t elements,
                          const Quantiser& quantiser, std::byte* out, UnitSums* sums) noexcept {
  if (sums == nullptr) return encode_block_scalar(grad, residual, elements, quantiser, out, nullptr);
  bool nonfinite = false;
  for (std::size_t i = 0; i < elements; i += kBlockElements) {
    BlockLanes lanes;
    nonfinite |= encode_block_scalar(grad + i, residual == nullptr ? nullptr : residual + i,
                                     std::min(kBlockElements, elements - i), quantiser, out + i / 4, &lanes);
    sums->append(lanes);
  }
  return nonfinite;
}

/// As encode_scalar() under NonFinite::kSkip, with a residual of bfloat16, 2 bytes an element.
inline bool encode_bf16_scalar(const float* grad, std::byte* residual, std::size_t elements,
                               const Quantiser& quantiser, std::byte* out) noexcept {
  const float threshold = quantiser.effective_threshold();
  bool nonfinite = false;
  std::fill_n(out, packed_bytes(elements), std::byte{0});
  for (std::size_t i = 0; i < elements; ++i) {
    const float x = dense::float_from_bf16(load<std::uint16_t>(residual + 2 * i)) + grad[i];
    if (!is_finite(x)) {
      nonfinite = true;
      continue;
    }
    const unsigned code = code_of(x, threshold);
    out[i / 4] |= static_cast<std::byte>(code << code_shift(i));
    store(dense::bf16_from_float(rest_of(x, code, quantiser.level)), residual + 2 * i);
  }
  return nonfinite;
}

/// Adds to the lanes what encode_block_scalar() would add, for |x| >= threshold, and changes nothing else.
inline void measure_block_scalar(const float* grad, const float* residual, std::size_t elements,
                                 float threshold, BlockLanes* lanes, std::size_t first = 0) noexcept {
  for (std::size_t i = 0; i < elements; ++i) {
    const float x = magnitude(residual == nullptr ? grad[i] : residual[i] + grad[i]);
    if (is_finite(x)) lanes->add(first + i, x, x >= threshold);
  }
}

/// Appends to *sums what encode_scalar() would append, for |x| >= threshold, and changes nothing else.
inline void measure_scalar(const float* grad, const float* residual, std::size_t elements, float threshold,
                           UnitSums* sums) noexcept {
  for (std::size_t i = 0; i < elements; i += kBlockElements) {
    BlockLanes lanes;
    measure_block_scalar(grad + i, residual == nullptr ? nullptr : residual + i,
                         std::min(kBlockElements, elements - i), threshold, &lanes);
    sums->append(lanes);
  }
}

/// The packed codes of one payload per way, each starting `offset` bytes into its payload.
struct Codes {
  std::span<const Payload> payloads;
  std::size_t offset = 0;

  std::size_t ways() const noexcept { return payloads.size(); }
  const std::byte* packed(std::size_t way) const noexcept { return payloads[way].data() + offset; }
  Codes from_element(std::size_t first) const noexcept { return {payloads, offset + first / 4}; }
};

inline std::int32_t sum_at(const Codes& codes, std::size_t i) noexcept {
  std::int32_t sum = 0;
  for (std::size_t way = 0; way < codes.ways(); ++way) sum += code_at(codes.packed(way), i);
  return sum;
}

/// Writes fl(k * level), k being the integer sum of an element's codes.
inline void sum_to_floats_scalar(const Codes& codes, std::size_t elements, float level, float* out) noexcept {
  for (std::size_t i = 0; i < elements; ++i) out[i] = static_cast<float>(sum_at(codes, i)) * level;
}

/// Adds code * level of one payload's codes to out.
inline void add_to_floats_scalar(const std::byte* packed, std::size_t elements, float level,
                                 float* out) noexcept {
  for (std::size_t i = 0; i < elements; ++i) out[i] += static_cast<float>(code_at(packed, i)) * level;
}

/// Writes count_at(i) for each element in bit planes: per group of 64 elements, word j holds bit j of every
/// element's count, element e in bit e. Absent elements of the last group are 0. Writes plane_bytes(elements,
/// ways).
template <typename CountAt>
void to_planes_scalar(std::size_t elements, std::size_t ways, std::byte* out,
                      const CountAt& count_at) noexcept {
  const std::size_t bits = count_bits(ways);
  for (std::size_t first = 0; first < elements; first += kPlaneGroup, out += 8 * bits) {
    std::array<std::uint64_t, 32> planes{};
    for (std::size_t e = 0; e < std::min(kPlaneGroup, elements - first); ++e) {
      const std::uint32_t count = count_at(first + e);
      for (std::size_t j = 0; j < bits; ++j) planes[j] |= std::uint64_t{count >> j & 1} << e;
    }
    for (std::size_t j = 0; j < bits; ++j) store(planes[j], out + 8 * j);
  }
}

/// Writes k + ways, k being the integer sum of an element's codes, in bit planes.
inline void sum_to_planes_scalar(const Codes& codes, std::size_t elements, std::byte* out) noexcept {
  to_planes_scalar(elements, codes.ways(), out, [&](std::size_t i) {
    return static_cast<std::uint32_t>(sum_at(codes, i) + static_cast<int>(codes.ways()));
  });
}

/// Writes counts, k + ways of each element, in bit planes. Requires ways <= kMaxByteWays.
inline void counts_to_planes_scalar(const std::uint8_t* counts, std::size_t elements, std::size_t ways,
                                    std::byte* out) noexcept {
  to_planes_scalar(elements, ways, out, [&](std::size_t i) { return std::uint32_t{counts[i]}; });
}

/// Reads bit planes back and writes fl(k * level). Returns the largest count found, absent elements included;
/// it is at most 2 * ways unless the bytes are bad.
inline std::uint32_t planes_to_floats_scalar(const std::byte* planes, std::size_t ways, std::size_t elements,
                                             float level, float* out) noexcept {
  const std::size_t bits = count_bits(ways);
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < (elements + kPlaneGroup - 1) / kPlaneGroup * kPlaneGroup; ++i) {
    const std::byte* const group = planes + i / kPlaneGroup * 8 * bits;
    std::uint32_t count = 0;
    for (std::size_t j = 0; j < bits; ++j) {
      count |= static_cast<std::uint32_t>(load<std::uint64_t>(group + 8 * j) >> (i % kPlaneGroup) & 1) << j;
    }
    largest = std::max(largest, count);
    if (i < elements)
      out[i] = static_cast<float>(static_cast<std::int32_t>(count) - static_cast<std::int32_t>(ways)) * level;
  }
  return largest;
}

}  // namespace gradwire::compress::two_bit
