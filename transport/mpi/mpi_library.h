// Loads libgradwire_mpi.so.
//
// Threading: from any thread.
#pragma once

#include <memory>
#include <string>

#include "transport/mpi/mpi_api.h"

namespace gradwire::transport {

/// Loads the library, once and for the rest of the process, and makes a port. Throws TransportError with what
/// the loader says when it is not there, or cannot find MPI.
std::unique_ptr<MpiApi> load_mpi(const std::string& path);

}  // namespace gradwire::transport
