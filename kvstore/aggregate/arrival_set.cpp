#include "kvstore/aggregate/arrival_set.h"

#include <fmt/format.h>

#include <stdexcept>

namespace gradwire::kvstore {

std::uint32_t ArrivalSet::come(std::uint32_t worker) {
  if (is_away(worker)) {
    throw std::invalid_argument(
        fmt::format("{}: worker {} has come already and waits for the others", verb_, worker));
  }
  const std::uint32_t place = away_++;
  is_away_[worker] = true;
  // The last one ends the barrier for all, and the set serves the next.
  if (away_ == is_away_.size()) {
    away_ = 0;
    is_away_.assign(is_away_.size(), false);
  }
  return place;
}

void ArrivalSet::go_back(std::uint32_t worker) {
  if (!is_away(worker)) return;
  is_away_[worker] = false;
  --away_;
}

}  // namespace gradwire::kvstore
