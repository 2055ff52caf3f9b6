// Stands in for nccl_port.cpp where CMake found no way to build it; it knows why.
#include "transport/messenger.h"
#include "transport/nccl/nccl_port.h"

namespace gradwire::transport {

std::string nccl_missing() { return "this build has no NCCL: " GRADWIRE_NO_NCCL; }

std::unique_ptr<NcclPort> open_nccl(const std::string&, int) {
  throw TransportError("nccl: " + nccl_missing() + "; use a store that needs none, such as 'allreduce'");
}

}  // namespace gradwire::transport
