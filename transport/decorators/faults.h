// Faults is one process's part in a FaultSpec. It counts injected faults, and kills the process where the
// spec says so.
//
// Threading: any thread may call every method. Lifetime: the owners are the FaultyMessengers of the process
// and the reporter of the counts.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/checksum.h"
#include "transport/decorators/fault_spec.h"

namespace gradwire::transport {

enum class Fault : std::uint8_t {
  kDropped,
  kDuplicated,
  kReordered,
  kDelayed,
  kCorrupted,
  kPartitioned,
  kSlowed
};
inline constexpr std::size_t kFaultKinds = 7;
/// By Fault: "dropped", ...
std::string_view name_of(Fault fault);

/// Frames seen, and for each Fault the frames that it was injected into.
struct FaultCounts {
  std::uint64_t frames = 0;
  std::array<std::uint64_t, kFaultKinds> met{};
  /// Of kills that are to come to nodes of this process and have not: which, and how far each came.
  std::vector<std::string> unmet_kills{};
  std::uint64_t of(Fault fault) const { return met[static_cast<std::size_t>(fault)]; }
};

/// "1200 frames: 12 dropped, 11 corrupted; kill=worker:1@push:100 did not happen: worker 1 came to 37"
std::string to_string(const FaultCounts& counts);

class Faults {
 public:
  using Log = std::function<void(const std::string&)>;

  /// log gets the last words of a process that is to be killed; may be empty.
  explicit Faults(FaultSpec spec, Log log = {}) : spec_(std::move(spec)), log_(std::move(log)) {}

  /// Reads what a process was given: nullptr for an empty text. Throws std::invalid_argument for a bad one,
  /// and for damage where payloads go without the checksum by which it is found.
  static std::shared_ptr<Faults> of(std::string_view text, PayloadChecksum checksum, Log log = {});

  const FaultSpec& spec() const { return spec_; }
  FaultCounts counts() const;

  /// Notes that a node lives in this process.
  void host(Node node);
  void count(Fault fault);
  void count_frame();
  /// Notes that a node of this process is at an event, and does not return where the spec kills it there
  /// (SIGKILL).
  void saw(Node node, FaultEvent event);

 private:
  const FaultSpec spec_;
  const Log log_;
  mutable std::mutex mutex_;
  FaultCounts counts_;
  std::map<std::pair<Node, FaultEvent>, std::uint64_t> events_;
  std::set<Node> hosted_;
};

/// Reports to faults the frames that a scheduler receives (ZmqOptions::witness).
std::function<void(Kind)> scheduler_witness(std::shared_ptr<Faults> faults);

}  // namespace gradwire::transport
