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
  explicit Attendance(std::uint32_t workers) : workers_(workers) {}

  /// Notes that a worker joins; when all have, all are back. Returns how many had joined before it since
  /// then. `number` tells a worker's joins apart, and grows: one that is repeated changes nothing and returns
  /// the same. Throws std::invalid_argument for a worker that is away and joins again.
  std::uint64_t join(std::uint32_t worker, std::uint64_t number);

  bool is_away(std::uint32_t worker) const { return workers_[worker].joins > ended_; }
  /// How many are.
  std::uint32_t away() const { return away_; }

 private:
  struct Worker {
    std::uint64_t joins = 0;
    std::uint64_t number = 0;  ///< of the last one
    std::uint64_t place = 0;   ///< likewise
  };
  std::vector<Worker> workers_;
  std::uint64_t ended_ = 0;  ///< how often all have joined
  std::uint32_t away_ = 0;
};

}  // namespace gradwire::kvstore
