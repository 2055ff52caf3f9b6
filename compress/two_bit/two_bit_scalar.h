// The 2-bit rules element by element: the specification of two_bit_kernels, on every target byte for byte.
//
// Source: MXNet's gradient compression (kvstore, 1.0 to 1.9.1) for the codes, their packing and the residual.
// Ours: a level apart from the threshold, the sums that agreed scales need.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

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

/// Bits of a code in a payload.
inline constexpr std::size_t kCodeBits = 2;

constexpr std::size_t packed_bytes(std::size_t elements) { return (elements + 15) / 16 * 4; }

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

}  // namespace gradwire::compress::two_bit
