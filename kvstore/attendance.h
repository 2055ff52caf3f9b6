// Attendance knows which workers have joined: they have run out of data, and contribute to no round until all
// have.
//
// Threading: one owner. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace gradwire::kvstore {

class Attendance {
 public:
  explicit Attendance(std::uint32_t workers) : is_away_(workers) {}

  /// Notes that a worker joins; when all have, all are back. Returns how many had joined before it since
  /// then. Throws std::invalid_argument for a worker that is away and joins again.
  std::uint32_t join(std::uint32_t worker);

  bool is_away(std::uint32_t worker) const { return is_away_[worker]; }
  /// How many are.
  std::uint32_t away() const { return away_; }

 private:
  std::vector<bool> is_away_;  ///< by worker
  std::uint32_t away_ = 0;
};

}  // namespace gradwire::kvstore
