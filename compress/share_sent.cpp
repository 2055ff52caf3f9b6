#include "compress/share_sent.h"

#include <cmath>
#include <cstddef>

namespace gradwire::compress {

ShareSent& ShareSent::operator+=(const ShareSent& other) {
  given_squares += other.given_squares;
  kept_squares += other.kept_squares;
  is_known |= other.is_known;
  return *this;
}

double squares_of(std::span<const float> gradient, std::span<const float> residual) {
  double squares = 0;
  for (std::size_t i = 0; i < residual.size(); ++i) {
    const double value =
        static_cast<double>(residual[i]) + (gradient.empty() ? 0 : static_cast<double>(gradient[i]));
    if (std::isfinite(value)) squares += value * value;
  }
  return squares;
}

}  // namespace gradwire::compress
