// ProgramSteps compares the program step of each worker's push. Workers that have taken different numbers of
// steps get an error and not each other's gradients.
//
// Threading: a value; one thread at a time.
#pragma once

#include <cstdint>
#include <optional>

namespace gradwire::kvstore {

class ProgramSteps {
 public:
  /// Notes one worker's, as FrameHeader::program_step has it. 0 is not compared.
  void add(std::uint32_t worker, std::uint32_t step);
  /// Throws std::runtime_error naming two workers whose steps differ.
  void require_alike() const;

 private:
  struct OfWorker {
    std::uint32_t worker = 0, step = 0;
  };
  std::optional<OfWorker> first_, other_;  ///< other: the first one that differs from first
};

}  // namespace gradwire::kvstore
