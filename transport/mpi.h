// A job over MPI: one process a rank, started by mpirun. MPI itself lives in a library of its own
// (libgradwire_mpi.so), loaded when one of these is called, so that nothing here needs MPI to be installed.
//
// Threading: call once per process, from any thread. MPI calls are made by one thread of its own.
// Lifetime: the library is never unloaded. MPI is initialised where the process has not done so, and
// finalised
//   at the end of a job that did not fail; after a failure MPI_Finalize is never entered.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "transport/collective.h"
#include "transport/node_pair.h"

namespace gradwire::transport {

struct MpiOptions {
  std::string library;  ///< path of libgradwire_mpi.so
  std::chrono::milliseconds leave_timeout{5'000};
  std::chrono::milliseconds liveness_timeout{5'000};  ///< a silent peer is dead after this
  std::function<void(const std::string&)> log;        ///< progress for people; may be empty
};

/// Makes every rank of MPI_COMM_WORLD a worker and the server of its shard. Throws TransportError with the
/// reason where the library or MPI cannot be loaded, or MPI gives a lower thread level than it needs.
NodePair connect_mpi(const MpiOptions& options);

/// What placement native needs: a Messenger for the control plane (exchange, fail, leave; no servers), and
/// the sums.
struct MpiNative {
  std::unique_ptr<Messenger> messenger;
  std::unique_ptr<Collective> collective;
};
MpiNative connect_mpi_native(const MpiOptions& options);

}  // namespace gradwire::transport
