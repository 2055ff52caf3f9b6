// SubmissionOrder sends pushes in the order in which their operations were submitted, part by part,
// whichever is encoded first. Where a library sums, the n-th call of every rank must be the same.
//
// Threading: none of its own; one thread at a time. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "transport/frame.h"

namespace gradwire::kvstore {

class SubmissionOrder {
 public:
  /// Notes that an operation of so many parts comes next, and returns its number.
  std::uint64_t expect(std::size_t parts);
  /// Takes one part of an operation and returns all that may go now, in order.
  std::vector<transport::Frame> add(std::uint64_t operation, std::size_t part, transport::Frame frame);
  /// Whether a part has not gone yet.
  bool holds(std::uint64_t operation, std::size_t part) const;

 private:
  struct Operation {
    std::size_t parts = 0;
    std::size_t gone = 0;
    std::map<std::size_t, transport::Frame> waiting;  ///< by part
  };
  std::map<std::uint64_t, Operation> operations_;  ///< by number; those of which not every part has gone
  std::uint64_t next_ = 0;
};

}  // namespace gradwire::kvstore
