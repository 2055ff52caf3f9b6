#include "transport/zmq/zmq_options.h"

#include <stdexcept>
#include <string>

#include "transport/membership/control.h"
#include "transport/mirrors.h"

namespace gradwire::transport {
namespace {

using std::chrono::milliseconds;

// A server refuses a hello with more (parse_stream_hello), and each stream costs both sides descriptors.
constexpr std::uint32_t kMostStreams = 64;

}  // namespace

void require_node_options(const ZmqOptions& options) {
  const auto refuse = [](const std::string& given, const std::string& expected) {
    throw std::invalid_argument("connect_zmq: " + given + ", expected " + expected);
  };
  if (options.role == Role::kScheduler)
    refuse("role is scheduler", "worker or server; see the class Scheduler");
  // Ranks have 24 bits on the wire, and the largest means "no rank yet".
  if (options.workers == 0 || options.workers >= kNoRank) {
    refuse("workers=" + std::to_string(options.workers), "at least 1");
  }
  // A worker may come without servers: in a job where a library sums, there are none.
  const std::uint32_t size = options.role == Role::kServer ? options.servers : options.workers;
  if (size == 0 || (options.rank && *options.rank >= size)) {
    refuse("rank=" + std::to_string(options.rank.value_or(0)) + " of " + std::to_string(size),
           "a rank below the size");
  }
  require_mirrors("connect_zmq", options.servers, options.replicas);
  if (options.streams_per_peer == 0 || options.streams_per_peer > kMostStreams) {
    refuse("streams_per_peer=" + std::to_string(options.streams_per_peer), "1 to 64");
  }
  if (options.member.empty() == (options.on_failure == OnFailure::kContinue)) {
    refuse("member='" + options.member + "'", "a name with OnFailure::kContinue, and none without");
  }
  // A beat is a tenth of the timeout and at least 1 ms.
  if (options.liveness_timeout < milliseconds(10) || options.rendezvous_timeout < milliseconds(1)) {
    refuse("liveness_timeout or rendezvous_timeout is too short", "at least 10 ms");
  }
}

void require_scheduler_options(const ZmqOptions& options) {
  if (options.workers == 0 || options.workers >= kNoRank || options.servers >= kNoRank) {
    throw std::invalid_argument("scheduler: workers=" + std::to_string(options.workers) + ", servers=" +
                                std::to_string(options.servers) + "; expected at least one worker");
  }
  require_mirrors("scheduler", options.servers, options.replicas);
  if (options.replicas > 0 && options.on_failure == OnFailure::kContinue) {
    throw std::invalid_argument(
        "scheduler: replicas with on_failure=continue: servers begin anew in each generation; give one of "
        "the two");
  }
  if (options.liveness_timeout < milliseconds(10) || options.rendezvous_timeout < milliseconds(1)) {
    throw std::invalid_argument("scheduler: liveness_timeout and rendezvous_timeout must be positive");
  }
  if (options.min_workers == 0 || options.min_workers > options.workers) {
    throw std::invalid_argument("scheduler: min_workers=" + std::to_string(options.min_workers) +
                                ", expected 1 to workers=" + std::to_string(options.workers));
  }
}

}  // namespace gradwire::transport
