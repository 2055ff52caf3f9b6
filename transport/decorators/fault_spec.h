// FaultSpec is the faults to inject into a job, read from a text, the same on every node.
//
//   seed=7,drop=1%,duplicate=1%,reorder=1%,corrupt=1%,delay=5ms@10%,
//   partition=worker:1+worker:2|server:0@10s+2s,slow=worker:2@10mbit+5ms,kill=worker:1@push:100
//
// transport/README.md ("Faults") has the grammar, and the effect of each fault.
// Threading: values and pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/frame.h"

namespace gradwire::transport {

/// An event of a process, at which it can be killed.
enum class FaultEvent : std::uint8_t {
  kStart,       ///< before it joins the job
  kInit,        ///< a key's first value
  kPush,        ///< a contribution to a round
  kReply,       ///< the answer to one
  kPull,        ///< a question for a value
  kCheckpoint,  ///< a state that is read from a server, or written to one
  kBlob,        ///< anything of a collective on arrays
  kBarrier,     ///< an exchange: barriers, and every collective's beginning
  kHeartbeat,   ///< the scheduler's: a node's beat
  kLeave,       ///< its goodbye, before it is said; the scheduler's: a node's
};

/// "push"
std::string to_string(FaultEvent event);

/// One node, or all of a role.
struct NodePattern {
  Role role = Role::kWorker;
  std::optional<std::uint32_t> rank{};  ///< none: all
  bool matches(Node node) const { return node.role == role && (!rank || node.rank == *rank); }
  bool operator==(const NodePattern&) const = default;
};

struct FaultSpec {
  struct Partition {
    std::vector<NodePattern> one, other;  ///< which lose what they send to each other
    std::chrono::milliseconds begin{0};   ///< since a node has joined
    std::chrono::milliseconds length{0};
    bool operator==(const Partition&) const = default;
  };
  struct Slow {
    NodePattern node;
    double bytes_per_second = 0;
    std::chrono::microseconds latency{0};
    bool operator==(const Slow&) const = default;
  };
  struct Kill {
    NodePattern node;
    FaultEvent event = FaultEvent::kPush;
    std::uint64_t count = 1;  ///< which of them, from 1
    bool operator==(const Kill&) const = default;
  };

  std::uint64_t seed = 1;
  double drop = 0, duplicate = 0, reorder = 0, corrupt = 0;  ///< shares of the frames, 0 to 1
  double delayed = 0;
  std::chrono::microseconds delay{0};
  std::vector<Partition> partitions{};
  std::vector<Slow> slow{};
  std::vector<Kill> kills{};
  bool operator==(const FaultSpec&) const = default;

  /// Whether frames may be lost, so that a node that leaves may be asked for answers again.
  bool loses_frames() const { return drop > 0 || corrupt > 0 || !partitions.empty(); }
};

/// "worker:1", "server:*", "scheduler"
std::string to_string(const NodePattern& pattern);
/// "kill=worker:1@push:100"
std::string to_string(const FaultSpec::Kill& kill);

/// Throws std::invalid_argument, which names the first, where the spec has nodes that a job of that size has
/// not.
void require_members(const FaultSpec& spec, std::uint32_t workers, std::uint32_t servers);

/// Reads a spec. Throws std::invalid_argument that names the item, what was expected, and an example.
FaultSpec parse_faults(std::string_view text);

}  // namespace gradwire::transport
