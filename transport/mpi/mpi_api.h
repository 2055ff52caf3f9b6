// MpiApi is MPI as this folder uses it. libgradwire_mpi.so implements it, so that MPI's header and library
// are needed by nothing else.
//
// Threading: every method by one thread, the one that called initialise(). version() by any.
// Lifetime: bytes handed in stay where they are, and unchanged, until the operation's Done was called.
// Failure: TransportError with the name of the MPI call and MPI's own text. After one, only abandon() is
// left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "transport/collective.h"

namespace gradwire::transport {

class MpiApi {
 public:
  /// Called by poll(), and never twice. It may start operations.
  using Done = std::function<void()>;
  /// Messages of different tags do not overtake within their tag; across tags they may.
  enum class Tag : std::uint8_t { kHead = 1, kPayload = 2 };
  /// A head that has come and is not received yet.
  struct Probed {
    std::uint32_t rank = 0;
    std::size_t size_bytes = 0;
  };

  virtual ~MpiApi() = default;
  MpiApi(const MpiApi&) = delete;
  MpiApi& operator=(const MpiApi&) = delete;

  /// "Open MPI v4.1.4, package: ..."
  virtual std::string version() const = 0;

  /// Initialises MPI where the process has not. Blocks until every process of the job does. Returns the
  /// thread level that is in force ("MPI_THREAD_MULTIPLE"); throws when it is too low or MPI was finalised.
  virtual std::string initialise() = 0;
  virtual std::uint32_t rank() const = 0;
  virtual std::uint32_t size() const = 0;

  /// Makes communicators of our own from MPI_COMM_WORLD: done when every rank has called this. Comes before
  /// all that follows.
  virtual void join(Done done) = 0;

  // Each operation takes at most 2^31 - 1 bytes or elements.
  virtual void send(std::uint32_t rank, Tag tag, std::span<const std::byte> bytes, Done done) = 0;
  /// As send(), done not before the receiver has begun to receive it.
  virtual void send_confirmed(std::uint32_t rank, Tag tag, std::span<const std::byte> bytes, Done done) = 0;
  virtual void receive(std::uint32_t rank, Tag tag, std::span<std::byte> bytes, Done done) = 0;
  /// Looks for a head from any rank. What it finds is received next, by receive_probed().
  virtual std::optional<Probed> probe() = 0;
  virtual void receive_probed(std::span<std::byte> bytes, Done done) = 0;

  // Collectives, of all ranks in the same order. An operation whose Done was not called yet is among
  // under_way().
  virtual void all_reduce(std::span<std::byte> values, ElementType type, Done done) = 0;
  /// Rank r's block goes to all[r * stride_bytes ...].
  virtual void all_gather(std::span<const std::byte> block, std::byte* all, std::size_t stride_bytes,
                          Done done) = 0;
  virtual void barrier(Done done) = 0;

  /// Gives MPI the time to work, and calls the Done of what has come to an end. Returns how many.
  virtual std::size_t poll() = 0;
  virtual std::size_t under_way() const = 0;

  /// Frees what join() made. The last port of the process also finalises MPI (and blocks until every rank
  /// does) if a port had initialised it and none was abandoned. Requires under_way() == 0.
  virtual void finish() = 0;
  /// Ends a job that failed; MPI is never finalised then. Drops the Done of sends under way. Those of other
  /// operations are kept for ever with what they own, since a network card may still write there, or MPI
  /// itself. If any are under way, no port of this process can be initialised again, and nobody should call
  /// MPI: it may touch the memory of sends and of sums that was handed in.
  virtual void abandon() noexcept = 0;

 protected:
  MpiApi() = default;
};

/// What libgradwire_mpi.so exports: gives a new port. Its name ends in a number that changes with MpiApi.
using MakeMpiPort = MpiApi* (*)();
inline constexpr const char* kMakeMpiPort = "gradwire_make_mpi_port_1";

}  // namespace gradwire::transport
