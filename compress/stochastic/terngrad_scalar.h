// TernGrad element by element: the specification of terngrad_kernels, on every target byte for byte.
//
// Source: Wen et al. 2017, "TernGrad: ternary gradients to reduce communication in distributed deep
// learning", equations 1 to 3 (a sign, sent with probability |x| / s) and 5 (clipping at some deviations).
// Ours: s per codec unit in place of a layer; the deviation is taken around 0; the codes are 2bit's.
//
// Threading: all functions are pure.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "compress/payload/float_bits.h"
#include "compress/payload/host_device.h"
#include "compress/stochastic/dither.h"
#include "compress/two_bit/two_bit_scalar.h"

namespace gradwire::compress::terngrad {

/// What the scale of a unit is made of. Squares are exact in double, and added in one written order: element
/// i to lane i % kLanes, in order of i.
struct Moments {
  static constexpr std::size_t kLanes = 16;
  float most = 0;                        ///< the largest |x| of finite x
  std::array<double, kLanes> squares{};  ///< of finite x

  /// Folds lanes i and i + 8, then i + 4, i + 2, i + 1.
  double sum_of_squares() const noexcept {
    std::array<double, kLanes> lanes = squares;
    for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }
};

/// Adds x = residual + grad (x = grad when residual is null) to *moments.
inline void measure_scalar(const float* grad, const float* residual, std::size_t elements,
                           Moments* moments) noexcept {
  for (std::size_t i = 0; i < elements; ++i) {
    const float x = residual == nullptr ? grad[i] : residual[i] + grad[i];
    if (!is_finite(x)) continue;
    moments->most = std::max(moments->most, magnitude(x));
    moments->squares[i % Moments::kLanes] += static_cast<double>(x) * static_cast<double>(x);
  }
}

/// What a sent element stands for: the largest |x|, but at most `clip` deviations, the root of the mean
/// square; clip 0 clips nothing. A scale that would be subnormal is 0, and sends nothing.
GRADWIRE_HOST_DEVICE inline float scale_of(float most, double sum_of_squares, std::size_t elements,
                                           float clip) noexcept {
  double scale = most;
  if (clip > 0) {
    const double deviation = std::sqrt(sum_of_squares / static_cast<double>(elements));
    scale = std::min(scale, static_cast<double>(clip) * deviation);
  }
  const auto rounded = static_cast<float>(scale);
  return rounded < std::numeric_limits<float>::min() ? 0 : rounded;
}

inline float scale_of(const Moments& moments, std::size_t elements, float clip) noexcept {
  return scale_of(moments.most, moments.sum_of_squares(), elements, clip);
}

/// 1 / scale, or 0.
GRADWIRE_HOST_DEVICE inline float inverse_of(float scale) noexcept { return scale == 0 ? 0 : 1 / scale; }

/// In place of a random number where Server rounds to nearest.
inline constexpr float kToNearest = 0.5f;

/// Encodes x = residual + grad (x = grad when residual is null) as codes of 2bit and keeps x - sent. An x
/// that is not finite sends 0 and leaves the residual as it was. dither is null, to round to nearest, or
/// applies from its element `first` on. Writes two_bit::packed_bytes(elements) bytes, absent elements as 00.
/// Returns true when such an x was found.
inline bool encode_scalar(const float* grad, float* residual, std::size_t elements, float scale,
                          const Dither* dither, std::size_t first, std::byte* codes) noexcept {
  const float inverse = inverse_of(scale);
  bool nonfinite = false;
  std::fill_n(codes, two_bit::packed_bytes(elements), std::byte{0});
  for (std::size_t i = 0; i < elements; ++i) {
    const float x = residual == nullptr ? grad[i] : residual[i] + grad[i];
    if (!is_finite(x)) {
      nonfinite = true;
      continue;
    }
    const float uniform = dither == nullptr ? kToNearest : dither->uniform(first + i);
    const unsigned code = uniform < magnitude(x) * inverse ? (x < 0 ? 2 : 3) : 0;
    codes[i / 4] |= static_cast<std::byte>(code << two_bit::code_shift(i));
    if (residual != nullptr) residual[i] = two_bit::rest_of(x, code, scale);
  }
  return nonfinite;
}

}  // namespace gradwire::compress::terngrad
