#include "fusion/fluid_lanes.h"

#include <algorithm>

namespace gradwire::fusion {

void FluidLanes::add(double now, std::uint32_t lane, const Transfer& transfer) {
  advance(now);
  waiting_[lane].push_back(transfer);
  if (waiting_[lane].size() > 1) return;
  ++busy_;
  begin(lane);
}

void FluidLanes::begin(std::uint32_t lane) {
  // In bytes carried and not in time: a change of the rate moves all ends alike, and no entry has to be
  // touched.
  heads_.push({carried_ + waiting_[lane].front().bytes, begun_++, lane});
}

void FluidLanes::advance(double now) {
  carried_ += (now - now_) * rate_;
  now_ = now;
}

void FluidLanes::set_rate(double now, double bytes_per_second) {
  advance(now);
  rate_ = bytes_per_second;
}

std::optional<double> FluidLanes::next_end() const {
  if (heads_.empty() || rate_ <= 0) return std::nullopt;
  // Rounding may have carried a little too much, and time must not go back.
  return now_ + std::max(0.0, heads_.top().ends_at - carried_) / rate_;
}

FluidLanes::Ended FluidLanes::end(double now) {
  advance(now);
  const std::uint32_t lane = heads_.top().lane;
  heads_.pop();
  const Ended ended{lane, waiting_[lane].front()};
  waiting_[lane].pop_front();
  if (waiting_[lane].empty()) {
    --busy_;
  } else {
    begin(lane);
  }
  return ended;
}

}  // namespace gradwire::fusion
