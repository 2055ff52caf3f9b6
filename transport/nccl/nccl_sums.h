// NcclSums is the queue of a rank's collectives over NCCL, and the one thread that calls NCCL.
//
// Host buffers are staged: copied into pinned memory, from there to the device and back, several operations
// at a time. NCCL has no 16-bit integers: they travel as 32-bit ones.
//
// Threading: public methods from any thread. Each Done runs on the thread that calls NCCL, and must return
// at once.
// Lifetime: its user and that thread share it. The thread ends after close(). If NCCL never returns, the
// thread is left behind with what it holds.
// Failure: the first cause is final; it names this rank. What is in flight gets it, then the communicator is
// aborted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transport/collective.h"
#include "transport/nccl/nccl_port.h"

namespace gradwire::transport {

/// How long a rank waits.
struct NcclPatience {
  std::chrono::milliseconds join{60'000};    ///< for every rank to be in the communicator
  std::chrono::milliseconds sum{1'800'000};  ///< for one operation, its slowest rank included
  std::chrono::milliseconds end{5'000};      ///< for NCCL to end the communicator
};

class NcclSums {
 public:
  /// Joins the communicator; returns when every rank is in. Throws TransportError.
  static std::shared_ptr<NcclSums> join(std::unique_ptr<NcclPort> port, const NcclPort::Id& id,
                                        std::uint32_t rank, std::uint32_t ranks,
                                        const NcclPatience& patience);
  NcclSums(const NcclSums&) = delete;
  NcclSums& operator=(const NcclSums&) = delete;

  std::uint32_t rank() const { return rank_; }
  std::uint32_t ranks() const { return ranks_; }

  /// As Collective's. Without a type: gathers.
  void add(Buffer values, std::optional<ElementType> type, Collective::Done done);
  /// Fails what is under way and ends the communicator; waits for that as long as patience says. Called once.
  void close();

 private:
  using Clock = std::chrono::steady_clock;

  struct Operation {
    Buffer values;
    std::optional<ElementType> type;  // none: gathers
    Collective::Done done;
    std::uint64_t number = 0;
    // Once it has begun:
    Clock::time_point deadline;
    std::unique_ptr<NcclPort::Slot> slot;  // an empty operation has none
    std::size_t slot_bytes = 0;            // of the result there
  };

  NcclSums(std::unique_ptr<NcclPort> port, std::uint32_t rank, std::uint32_t ranks,
           const NcclPatience& patience);

  void await_start();

  // The thread's.
  void run(const NcclPort::Id& id);
  void join_communicator(const NcclPort::Id& id);
  void serve();
  void end();
  void fail(const std::string& cause);
  bool wait_for_work();
  bool begin_queued();
  void begin(Operation& operation);
  void finish_done();
  void finish_first();
  void check_deadline(const Operation& operation) const;
  /// Asks until what was begun is taken; check() throws when that takes too long.
  template <typename Check>
  void await_ready(const Check& check);
  std::unique_ptr<NcclPort::Slot> take_slot(std::size_t size_bytes);

  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  const NcclPatience patience_;

  // The thread's own.
  std::unique_ptr<NcclPort> port_;
  std::deque<Operation> under_way_;
  std::vector<std::unique_ptr<NcclPort::Slot>> free_slots_;
  std::vector<std::unique_ptr<NcclPort::Slot>> small_slots_;  // to be freed: that waits for the whole device
  BufferPool pool_;

  std::mutex mutex_;                 // guards what follows; not held while NCCL or a Done is called
  std::condition_variable wake_;     // for the thread
  std::condition_variable changed_;  // for callers
  std::deque<Operation> queued_;
  std::uint64_t count_ = 0;
  bool has_begun_ = false;
  bool is_closing_ = false;
  bool has_ended_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace gradwire::transport
