// Version of the ZeroMQ library in use, for `gradwire doctor`.
#pragma once

#include <string>

namespace gradwire::transport {

/// E.g. "4.3.4".
std::string zmq_version();

}  // namespace gradwire::transport
