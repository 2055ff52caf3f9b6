// The link of a host's workers over ZeroMQ: local sockets where the system has them, else loopback.
//
// Threading: connect_zmq_host() blocks; a collective of the main job's workers.
#pragma once

#include "transport/decorators/host_link.h"
#include "transport/zmq/zmq_messenger.h"

namespace gradwire::transport {

/// Agrees through job on which workers share a host (machine, network namespace and ZmqOptions::host equal),
/// and connects those. Of options it uses host, ipc, checksum, streams, sizes, timeouts and log. Throws as
/// connect_zmq().
HostLink connect_zmq_host(Messenger& job, const ZmqOptions& options);

}  // namespace gradwire::transport
