// What the ranks of a job over MPI exchange before it begins, and what they must agree on.
//
// Threading: values and pure functions, except mpi_rendezvous(): the I/O thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "transport/mpi/mpi_api.h"

namespace gradwire::transport {

/// A rank's part in a job: the call that it made. Part of the wire format, never renumber.
enum class MpiJob : std::uint32_t { kPairs = 1, kNative = 2 };

/// One rank's entry; all have the same length. Part of the wire format.
struct MpiEntry {
  std::uint32_t version = 1;  ///< of what travels over MPI
  MpiJob job = MpiJob::kPairs;
  std::uint64_t epoch = 0;  ///< rank 0's is the job's
  std::uint64_t largest_message_bytes = 0;
  std::uint64_t pid = 0;
  std::uint64_t machine = 0;    ///< the same for ranks of one machine (machine_identity()); 0: not known
  std::array<char, 64> host{};  ///< for people; ends in a NUL
};

/// Throws TransportError naming the first rank that differs from rank 0, and in what. Requires an entry.
void check_agreement(std::span<const MpiEntry> entries);

/// "worker 1 (node7, pid 4711)"
std::string describe_rank(std::span<const MpiEntry> entries, std::uint32_t rank);

/// Waits until every rank is here and gives all entries, by rank, agreed. Throws TimeoutError or
/// TransportError. log: gets progress for people; may be empty.
std::vector<MpiEntry> mpi_rendezvous(MpiApi& port, const MpiEntry& mine, std::chrono::milliseconds timeout,
                                     const std::function<void(const std::string&)>& log);

}  // namespace gradwire::transport
