// Checks of ZmqOptions, for a node and for a scheduler: each value by itself, before any connection is made.
//
// Threading: pure functions. Both throw std::invalid_argument, which says what was given and what is
// expected.
#pragma once

#include "transport/zmq/zmq_messenger.h"

namespace gradwire::transport {

void require_node_options(const ZmqOptions& options);
void require_scheduler_options(const ZmqOptions& options);

}  // namespace gradwire::transport
