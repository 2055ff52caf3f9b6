// ShareSent is the share of |x|^2, with x = gradient + residual, that codecs have sent: 1 - |kept|^2 /
// |x|^2, as in error_feedback.h.
//
// Threading: values and pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace gradwire::compress {

struct ShareSent {
  double given_squares = 0;  ///< |x|^2
  double kept_squares = 0;   ///< |kept|^2
  bool is_known = false;     ///< any round was measured

  double value() const { return given_squares > 0 ? 1 - kept_squares / given_squares : 1; }
  ShareSent& operator+=(const ShareSent& other);
};

/// Whether a tensor's round is measured: its first two rounds and some of the later ones, because measuring
/// takes two more passes over the encoded floats.
constexpr bool measures_share(std::uint64_t step) { return step < 2 || step % 16 == 0; }

/// The sum of the squares of a gradient plus a residual, or of a residual alone, where that is finite; codecs
/// leave what is not out. Requires an empty gradient or one as long.
double squares_of(std::span<const float> gradient, std::span<const float> residual);

}  // namespace gradwire::compress
