// Writes what a trace holds as a file: one process's part of a job's timeline. FORMAT.md has the format.
//
// Threading: pure, but for the trace's own rules.
#pragma once

#include <functional>
#include <string>

#include "kvstore/trace/trace.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

/// Whose trace it is.
struct TraceOrigin {
  transport::Node node;
  transport::World world;
  bool servers_in_workers = false;
  std::string store;  ///< its name, or "server"
};

/// Takes the spans out of trace and writes the part to folder, which is made if it is not there. Returns the
/// file's path: folder/worker-0.jsonl. It is there whole or not at all. Throws std::runtime_error naming the
/// file.
std::string write_trace(const std::string& folder, Trace& trace, const TraceOrigin& origin);

/// As write_trace(), for the end of a job. A failure does not harm the job: it only goes to `log`.
void leave_trace(const std::string& folder, Trace& trace, const TraceOrigin& origin,
                 const std::function<void(const std::string&)>& log);

}  // namespace gradwire::kvstore
