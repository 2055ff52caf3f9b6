// MpiSums is the queue of a rank's collectives: started in order, several at a time, long ones in pieces.
//
// Threading: the I/O thread only; each Done runs there.
// Lifetime: the port outlives it.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <optional>

#include "transport/collective.h"
#include "transport/mpi_port.h"

namespace gradwire::transport {

class MpiSums {
 public:
  /// What does not fit into largest_message_bytes is summed in pieces; all ranks must use the same.
  MpiSums(MpiPort& port, std::size_t largest_message_bytes);
  /// Requires idle(), or that fail() was called.
  ~MpiSums() = default;
  MpiSums(const MpiSums&) = delete;
  MpiSums& operator=(const MpiSums&) = delete;

  void all_reduce(Buffer values, ElementType type, Collective::Done done);
  void all_gather(Buffer block, Collective::Done done);
  /// Starts what there is room for; call it whenever something has ended. Returns how many it started.
  std::size_t start_queued();
  bool idle() const noexcept { return queued_.empty() && started_.empty(); }
  /// Operations of the port.
  std::size_t pieces_under_way() const noexcept;
  /// Ends what is under way and what will come with error. Requires that MPI does not touch memory any more:
  /// MpiPort::abandon().
  void fail(std::exception_ptr error);

 private:
  struct Sum {
    Buffer values;                    // of all_gather: the own block
    Buffer gathered;                  // of all_gather: all blocks
    std::optional<ElementType> type;  // none: all_gather
    Collective::Done done;
    std::size_t pieces = 0;  // not begun or under way
  };
  using SumPointer = std::shared_ptr<Sum>;  // owners: this queue and the operations of its pieces

  void add(Sum sum);
  void start(const SumPointer& sum);
  void finish_piece(const SumPointer& sum);

  MpiPort& port_;
  const std::size_t largest_message_bytes_;
  BufferPool pool_;
  std::deque<SumPointer> queued_;
  std::deque<SumPointer> started_;
  std::exception_ptr error_;
};

}  // namespace gradwire::transport
