// FluidLanes: transfers that share a link and all advance at the same rate, as flows of equal weight do.
// Each lane is a first-in first-out pipe, as a socket is.
//
// Threading: none of its own. The caller passes times, simulated seconds that never fall.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <vector>

namespace gradwire::fusion {

class FluidLanes {
 public:
  struct Transfer {
    std::uint64_t id = 0;
    double bytes = 0;
  };
  struct Ended {
    std::uint32_t lane = 0;
    Transfer transfer;
  };

  explicit FluidLanes(std::uint32_t lanes) : waiting_(lanes) {}

  /// Puts a transfer behind those of its lane. Requires lane < lanes.
  void add(double now, std::uint32_t lane, const Transfer& transfer);
  /// Says how many lanes carry something: the rate depends on it.
  std::uint32_t busy() const noexcept { return busy_; }
  /// Lets every busy lane carry so many bytes a second from now on, what has been carried until now at the
  /// old rate.
  void set_rate(double now, double bytes_per_second);
  /// When the next transfer ends if nothing changes; none: nothing is carried.
  std::optional<double> next_end() const;
  /// Ends the transfer of next_end() and begins the next one of its lane. Requires a busy lane.
  Ended end(double now);

 private:
  struct Head {
    double ends_at = 0;       ///< in carried_
    std::uint64_t begun = 0;  ///< breaks ties, so that equal simulations are equal
    std::uint32_t lane = 0;
    auto operator<=>(const Head&) const = default;
  };
  void begin(std::uint32_t lane);
  void advance(double now);

  std::vector<std::deque<Transfer>> waiting_;  // by lane; the first one is being carried
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads_;
  std::uint32_t busy_ = 0;
  std::uint64_t begun_ = 0;
  double now_ = 0;
  double rate_ = 0;
  double carried_ = 0;  // bytes that a lane would have carried, had it always been busy
};

}  // namespace gradwire::fusion
