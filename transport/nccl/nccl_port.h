// NcclPort is NCCL and CUDA as this folder uses them: one rank's communicator, a stream of its own beside
// those of the framework, and memory that both sides of a copy can reach. no_nccl.cpp replaces it in a build
// without NCCL.
//
// Threading: one thread makes all calls from begin_join() on; any thread may make the earlier ones. No call
// waits for another rank: it begins an operation, and is_ready() or is_done() is polled until that is over.
// Failure: TransportError with the name of the call and NCCL's or CUDA's own text. After one, only abort()
// is left.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "transport/collective.h"

namespace gradwire::transport {

class NcclPort {
 public:
  /// Rank 0 makes one, all join by it.
  using Id = std::array<std::byte, 128>;

  /// Pinned memory of the host with as much on the device: what one operation sums or gathers in place.
  class Slot {
   public:
    virtual ~Slot() = default;
    virtual std::span<std::byte> bytes() = 0;
  };

  virtual ~NcclPort() = default;
  NcclPort(const NcclPort&) = delete;
  NcclPort& operator=(const NcclPort&) = delete;

  /// "2.32.3"
  virtual std::string version() const = 0;
  /// Names the GPU, and no other GPU anywhere: "NVIDIA H100 80GB HBM3 (GPU-5f0c...)".
  virtual std::string device() const = 0;
  virtual Id make_id() = 0;

  virtual void begin_join(const Id& id, std::uint32_t rank, std::uint32_t ranks) = 0;
  /// Whether what was begun last has been taken; no other may begin before. Throws when the communicator has
  /// failed, on account of this rank or of another.
  virtual bool is_ready() = 0;

  virtual std::unique_ptr<Slot> make_slot(std::size_t size_bytes) = 0;
  /// Sums elements at the front of slot over all ranks. type is not kInt16, which NCCL has not.
  virtual void begin_all_reduce(Slot& slot, std::size_t elements, ElementType type) = 0;
  /// Gathers blocks: the own one lies at rank * block_bytes, and so will the others'.
  virtual void begin_all_gather(Slot& slot, std::size_t block_bytes) = 0;
  /// Once is_ready(): lets the first size_bytes of the result come to the host.
  virtual void fetch(Slot& slot, std::size_t size_bytes) = 0;
  /// Whether what was fetched is there.
  virtual bool is_done(Slot& slot) = 0;

  /// Begins to end a communicator with which all is well; end() follows once is_ready().
  virtual void begin_end() = 0;
  virtual void end() = 0;
  /// Ends it whatever is under way. May block for long where other ranks have died.
  virtual void abort() noexcept = 0;

 protected:
  NcclPort() = default;
};

/// Opens the library and the device. Throws TransportError with the reason where either cannot be used.
std::unique_ptr<NcclPort> open_nccl(const std::string& library, int device);

/// Why this build cannot use NCCL, whatever is installed; empty: it can.
std::string nccl_missing();

}  // namespace gradwire::transport
