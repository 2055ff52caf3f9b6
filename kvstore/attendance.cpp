#include "kvstore/attendance.h"

#include <fmt/format.h>

#include <stdexcept>

namespace gradwire::kvstore {

std::uint32_t Attendance::join(std::uint32_t worker) {
  if (is_away(worker)) {
    throw std::invalid_argument(
        fmt::format("join: worker {} has joined already and waits for the others", worker));
  }
  const std::uint32_t place = away_++;
  is_away_[worker] = true;
  if (away_ == is_away_.size()) {
    away_ = 0;
    is_away_.assign(is_away_.size(), false);
  }
  return place;
}

}  // namespace gradwire::kvstore
