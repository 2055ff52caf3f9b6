// The options of the layers below, from Python's keywords: one per setting, by the names of
// gradwire.settings. What is not given keeps its default.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "kvstore/engine/engine.h"
#include "kvstore/server/server.h"
#include "transport/mpi/mpi.h"
#include "transport/zmq/zmq_messenger.h"

namespace gradwire::python {

/// staleness_bound, also as None: pushes are applied at once.
kvstore::EngineOptions engine_options(const nanobind::kwargs& given);
kvstore::ServerOptions server_options(const nanobind::kwargs& given);
transport::ZmqOptions zmq_options(transport::Role role, const nanobind::kwargs& given);
/// library: libgradwire_mpi.so.
transport::MpiOptions mpi_options(const std::string& library, const nanobind::kwargs& given);

}  // namespace gradwire::python
