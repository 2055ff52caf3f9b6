// A job over MPI: one process per rank, started by mpirun. MPI itself lives in a library of its own
// (libgradwire_mpi.so), loaded when one of these functions is called. So nothing here needs MPI to be
// installed.
//
// Threading: from any thread; the n-th call of each rank belongs together. One thread per job makes all MPI
// calls. It polls MPI, less often the longer nothing comes.
// Lifetime: the library is never unloaded. MPI is initialised if the process has not done so. It is
// finalised with the last of the objects that a rank was given, in a job that did not fail. That waits, as
// MPI_Finalize does, until every rank is done. After a failure MPI_Finalize is never entered.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "transport/checksum.h"
#include "transport/collective.h"
#include "transport/membership/exchange_wait.h"
#include "transport/node_pair.h"

namespace gradwire::transport {

struct MpiOptions {
  std::string library;  ///< path of libgradwire_mpi.so
  std::chrono::milliseconds rendezvous_timeout{60'000};
  std::chrono::milliseconds leave_timeout{5'000};      ///< of a destructor, for what is still to be sent
  std::chrono::milliseconds liveness_timeout{20'000};  ///< a silent peer is dead after this
  /// Longer payloads and arrays go in pieces, since MPI counts in int. The same on all ranks.
  std::size_t largest_message_bytes = std::size_t{1} << 30;
  std::string host;  ///< this host's name, for people and to tell hosts apart; empty: what the system says
  PayloadChecksum checksum = PayloadChecksum::kAuto;  ///< ranks of one machine count as local sockets
  SlowExchange slow_exchange;                         ///< what is said of others that are awaited
  std::function<void(const std::string&)> log;  ///< progress for people, from the I/O thread; may be empty
};

/// Makes every rank of MPI_COMM_WORLD a worker and the server of its shard. Throws TransportError with the
/// reason where the library or MPI cannot be loaded, MPI gives a lower thread level than it needs, or ranks
/// differ in what they ask for; TimeoutError when not every rank comes; std::invalid_argument for bad
/// options.
NodePair connect_mpi(const MpiOptions& options);

/// What placement native needs: a Messenger for the control plane (exchange, fail, leave; no servers), and
/// the sums.
struct MpiNative {
  std::unique_ptr<Messenger> messenger;
  std::unique_ptr<Collective> collective;
};
/// As connect_mpi(). A Collective destroyed while sums are under way fails the job.
MpiNative connect_mpi_native(const MpiOptions& options);

/// What MPI is here, for `gradwire doctor`.
struct MpiDescription {
  std::string version;       ///< "Open MPI v4.1.4, package: ..."
  std::string thread_level;  ///< "MPI_THREAD_MULTIPLE"
};
/// Initialises MPI and finalises it again: for a process of its own. Throws as connect_mpi().
MpiDescription describe_mpi(const std::string& library);

}  // namespace gradwire::transport
