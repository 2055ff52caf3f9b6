// MpiSums is the queue of a rank's collectives: started in order, several at a time, long ones in pieces.
//
// Threading: the I/O thread only, but fail(): any. Each Done runs where its end is known.
// Lifetime: the port outlives it.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>

#include "transport/collective.h"
#include "transport/mpi/mpi_api.h"

namespace gradwire::transport {

class MpiSums {
 public:
  /// What does not fit into largest_message_bytes is summed in pieces; all ranks must use the same.
  MpiSums(MpiApi& port, std::size_t largest_message_bytes);
  MpiSums(const MpiSums&) = delete;
  MpiSums& operator=(const MpiSums&) = delete;

  void all_reduce(Buffer values, ElementType type, Collective::Done done);
  void all_gather(Buffer block, Collective::Done done);
  /// Starts what there is room for; call it whenever something has ended. Returns how many it started.
  std::size_t start_queued();
  /// Operations of the port.
  std::size_t pieces_under_way() const;
  /// Ends what is under way and what will come with error. MPI must not be called after it, or only in the
  /// way in which one is dying: it would work on memory that is its owner's again.
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
  SumPointer take_queued();
  void start(const SumPointer& sum);
  bool has_failed() const;
  void finish_piece(const SumPointer& sum);

  MpiApi& port_;
  const std::size_t largest_message_bytes_;
  BufferPool pool_;
  mutable std::mutex mutex_;  // guards what follows; not held while MPI or a Done is called
  std::deque<SumPointer> queued_;
  std::deque<SumPointer> started_;
  std::exception_ptr error_;
};

}  // namespace gradwire::transport
