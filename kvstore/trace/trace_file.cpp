#include "kvstore/trace/trace_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "kvstore/trace/json_text.h"

namespace gradwire::kvstore {
namespace {

using std::chrono::nanoseconds;

constexpr int kVersion = 1;

std::int64_t ns(TraceClock::time_point time) { return nanoseconds(time.time_since_epoch()).count(); }

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

/// What processes have in common whose steady clocks are one; empty where the system does not say.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string head(const Trace& trace, const TraceOrigin& origin) {
  return fmt::format(
      R"({{"gradwire_timeline":{},"role":"{}","rank":{},"workers":{},"servers":{},"servers_in_workers":{},)"
      R"("store":{},"host":{},"boot":{},"pid":{},"dropped":{}}})"
      "\n",
      kVersion, origin.node.role == transport::Role::kServer ? "server" : "worker", origin.node.rank,
      origin.world.workers, origin.world.servers, origin.servers_in_workers, json_text(origin.store),
      json_text(host_name()), json_text(boot_id()), ::getpid(), trace.dropped());
}

std::string text_of(Trace& trace, const TraceOrigin& origin) {
  const auto spans = trace.take_spans();
  std::string text = head(trace, origin);
  const auto out = std::back_inserter(text);
  for (const auto& [id, name] : trace.key_names())
    fmt::format_to(out, "{{\"key\":[{},{},{}]}}\n", static_cast<int>(id.first), id.second, json_text(name));
  for (const ClockReading& r : trace.readings())
    fmt::format_to(out, "{{\"clock\":[{},{},{},{}]}}\n", r.server, r.ahead.count(), r.round_trip.count(),
                   ns(r.at));
  for (const Span& s : spans) {
    fmt::format_to(out, "[{},{},{},{},{},{},{},{},{},{}]\n", static_cast<int>(s.stage), ns(s.begin),
                   ns(s.end), s.key, s.offset, s.bytes, s.step, s.priority,
                   s.peer == kNoPeer ? std::int64_t{-1} : std::int64_t{s.peer}, static_cast<int>(s.tier));
  }
  return text;
}

}  // namespace

std::string write_trace(const std::string& folder, Trace& trace, const TraceOrigin& origin) {
  const char* const role = origin.node.role == transport::Role::kServer ? "server" : "worker";
  const std::string path = fmt::format("{}/{}-{}.jsonl", folder, role, origin.node.rank);
  // Under another name until it is whole, so that no reader finds half a file.
  const std::string unfinished = path + ".unfinished";
  std::error_code error;
  // What goes wrong here is seen when the file cannot be written.
  std::filesystem::create_directories(folder, error);
  std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
  file << text_of(trace, origin);
  file.close();
  if (file) std::filesystem::rename(unfinished, path, error);
  if (!file || error) {
    throw std::runtime_error(
        fmt::format("timeline: {} cannot be written ({}); give a folder that this process may write", path,
                    error ? error.message() : std::strerror(errno)));
  }
  return path;
}

void leave_trace(const std::string& folder, Trace& trace, const TraceOrigin& origin,
                 const std::function<void(const std::string&)>& log) {
  try {
    write_trace(folder, trace, origin);
  } catch (const std::exception& error) {
    // The process ends in any case, and its result does not depend on a timeline.
    log(error.what());
  }
}

}  // namespace gradwire::kvstore
