#include "kvstore/attendance.h"

#include <fmt/format.h>

#include <stdexcept>

namespace gradwire::kvstore {

std::uint64_t Attendance::join(std::uint32_t worker, std::uint64_t number) {
  Worker& one = workers_[worker];
  if (number <= one.number) return one.place;
  if (is_away(worker)) {
    throw std::invalid_argument(
        fmt::format("join: worker {} has joined already and waits for the others", worker));
  }
  one = {one.joins + 1, number, away_++};
  if (away_ == workers_.size()) {
    away_ = 0;
    ++ended_;
  }
  return one.place;
}

}  // namespace gradwire::kvstore
