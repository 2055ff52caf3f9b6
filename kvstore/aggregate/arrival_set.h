// ArrivalSet tracks which workers have reached a barrier that the others have not reached yet: those that
// have run out of data and contribute to no round, and those that are in a collective and cannot push.
//
// Threading: one owner. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::kvstore {

class ArrivalSet {
 public:
  /// verb: the call by which workers come, for errors.
  ArrivalSet(std::uint32_t workers, std::string_view verb) : verb_(verb), is_away_(workers) {}

  /// Notes that a worker has come; when all have, all are back. Returns how many had come before it since
  /// then. Throws std::invalid_argument for a worker that is away and comes again.
  std::uint32_t come(std::uint32_t worker);
  /// Notes that a worker does not wait for the others any more. No-op for one that is not away.
  void go_back(std::uint32_t worker);

  bool is_away(std::uint32_t worker) const { return is_away_[worker]; }
  /// How many are.
  std::uint32_t away() const { return away_; }

 private:
  std::string verb_;
  std::vector<bool> is_away_;  ///< by worker
  std::uint32_t away_ = 0;
};

}  // namespace gradwire::kvstore
