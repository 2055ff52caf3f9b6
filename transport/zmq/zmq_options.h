// What ZmqOptions of a node, and of a scheduler, must be: their own values, before anybody is met.
//
// Threading: pure functions. Both throw std::invalid_argument, which says what was given and what is
// expected.
#pragma once

#include "transport/zmq/zmq_messenger.h"

namespace gradwire::transport {

void require_node_options(const ZmqOptions& options);
void require_scheduler_options(const ZmqOptions& options);

}  // namespace gradwire::transport
