// Sums over NCCL: a Collective whose ranks have a GPU each, or share one where every rank allows it.
//
// Threading and failure: as Collective; see nccl_sums.h.
#pragma once

#include <memory>
#include <string>

#include "transport/collective.h"
#include "transport/messenger.h"
#include "transport/nccl/nccl_bootstrap.h"
#include "transport/nccl/nccl_port.h"
#include "transport/nccl/nccl_sums.h"

namespace gradwire::transport {

/// Joins all workers of control, in which they exchange what NCCL needs; control is not kept. A collective of
/// the workers. Throws TransportError with the reason, having failed the job; TimeoutError when ranks do not
/// come.
std::unique_ptr<Collective> join_nccl(Messenger& control, std::unique_ptr<NcclPort> port,
                                      const NcclPatience& patience,
                                      GpuSharing sharing = GpuSharing::kRefused);

/// The same, on a device of this machine. library: path of libnccl.so.2, or its name.
std::unique_ptr<Collective> connect_nccl(Messenger& control, const std::string& library, int device,
                                         const NcclPatience& patience, GpuSharing sharing);

}  // namespace gradwire::transport
