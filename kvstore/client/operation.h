// Operation is a caller's request for one tensor: a push, a pull, both, a first value, or what a server
// keeps of a part.
//
// Threading: a value, handed over by its caller to the thread that executes it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvstore/device/device_link.h"
#include "kvstore/runtime/ticket.h"
#include "kvstore/trace/trace.h"
#include "kvstore/wire/key.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {

/// What an operation needs whose spans lie on a device.
struct DeviceOperation {
  std::shared_ptr<DeviceLink> link;  // owners: the thread, its tensors and operations on the device
  DeviceLink::Marks marks;           ///< of streams that write or read the spans before it
  std::shared_ptr<float> staged;     ///< owns what `in` shows when the caller could not wait
  transport::Buffer landing;         ///< the floats on the host, where the codec has no twin
  std::span<const float> in;         ///< the caller's spans while the operation's are those of the landing
  std::span<float> out;
  bool lands = false;  ///< what `landing` holds at the end is still to be copied to `out`
};

struct Operation {
  enum class Verb : std::uint8_t { kInit, kPush, kPull, kPushPull, kReadState, kWriteState };
  Verb verb = Verb::kPushPull;
  std::span<const float> in;
  std::span<float> out;
  std::vector<float> staged;     ///< owns what `in` shows when the caller could not wait
  std::span<const double> in64;  ///< in place of `in`, of a key of float64; always on the host
  std::span<double> out64;       ///< likewise of `out`
  std::vector<double> staged64;
  std::int32_t priority = 0;
  double scale = 1;                       ///< in float32 of what is of float32
  std::vector<std::span<float>> scatter;  ///< of several tensors in one: where the parts of `out` are copied
                                          ///< to; on a device those of `in` come from there too
  std::uint64_t number = 0;               ///< among all pushes, when they go in order; of states: the step
  std::shared_ptr<void> owner;  ///< of that memory, when nobody else keeps it until all that is sent has gone
  std::optional<DeviceOperation> device;  ///< `in`, `out` and `scatter` lie there; none: on the host
  std::size_t part = 0;                   ///< of kReadState and kWriteState: whose state
  transport::Buffer* state = nullptr;     ///< theirs, encoded (partition_state.h); lives as `in` does
  StateScope kept = StateScope::kAll;     ///< theirs: what of it
  std::uint32_t program_step = 0;         ///< of pushes: FrameHeader's
  bool is_for_servers_own = false;        ///< a pull: for the weight as a server has it (wire/PROTOCOL.md)
  Ticket done;
  Ticket taken;                        ///< `in` is no longer read
  std::uint64_t ahead_bytes = 0;       ///< of push_ahead_bytes, where `in` was taken ahead
  bool is_held = false;                ///< it waits with its caller's memory, since there was no room
  TraceClock::time_point submitted{};  ///< the epoch while nothing is traced

  void set_in(std::span<const float> values) { in = values; }
  void set_in(std::span<const double> values) { in64 = values; }
  void set_out(std::span<float> values) { out = values; }
  void set_out(std::span<double> values) { out64 = values; }
  /// What is sent of a part where its values go as they are.
  std::span<const std::byte> bytes_of(const Part& part) const {
    return in64.empty() ? std::as_bytes(in.subspan(part.offset, part.count))
                        : std::as_bytes(in64.subspan(part.offset, part.count));
  }
  std::size_t out_elements() const { return std::max(out.size(), out64.size()); }
  bool pushes() const { return verb == Verb::kPush || verb == Verb::kPushPull; }
  /// False too where the device's floats are handled in a landing on the host.
  bool works_on_device() const { return device && device->landing.size_bytes() == 0; }
};

struct Submission {
  KeyId key = 0;
  Operation operation;
};

}  // namespace gradwire::kvstore
