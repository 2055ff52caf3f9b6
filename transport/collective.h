// Collective sums arrays over all workers where a library or a fabric does the sum (MPI, NCCL). Unlike a
// Messenger it needs an order: the n-th call of each rank belongs to the same sum.
//
// Threading: one thread at a time calls it. `done` runs on the Collective's own thread and must return at
// once. Never blocks.
// Lifetime: a Buffer handed in comes back through `done`. The destructor fails what is still in flight.
// Failure: the first cause is final: every later done() gets it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string_view>

#include "transport/buffer.h"

namespace gradwire::transport {

enum class ElementType : std::uint8_t { kFloat32, kFloat16, kBfloat16, kInt8, kInt16, kInt32, kFloat64 };

std::size_t bytes_of(ElementType type) noexcept;

class Collective {
 public:
  /// values hold the sum (or, of all_gather, every rank's block in rank order), unless error is set.
  using Done = std::function<void(Buffer values, std::exception_ptr error)>;

  virtual ~Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  /// "mpi", "nccl"
  virtual std::string_view name() const noexcept = 0;
  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t size() const noexcept = 0;

  /// Starts summing values elementwise over all ranks, in place. Requires values.size_bytes() to be a
  /// multiple of bytes_of(type) and equal on all ranks. Floats: in the library's own order of addition,
  /// 16-bit ones rounded after each addition; integers wrap.
  virtual void all_reduce(Buffer values, ElementType type, Done done) = 0;
  /// Starts gathering every rank's block; all have the same length.
  virtual void all_gather(Buffer block, Done done) = 0;

 protected:
  Collective() = default;
};

}  // namespace gradwire::transport
