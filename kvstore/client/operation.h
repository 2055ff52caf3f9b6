// Operation is a caller's request for one tensor: a push, a pull, both, a first value, or what a server
// keeps of a part.
//
// Threading: a value, handed over by its caller to the thread that executes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvstore/array_view.h"
#include "kvstore/device/device_link.h"
#include "kvstore/runtime/ticket.h"
#include "kvstore/trace/trace.h"
#include "kvstore/wire/key.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {

/// What an operation needs whose arrays lie on a device. They are of at most 32 bits.
struct DeviceOperation {
  std::shared_ptr<DeviceLink> link;  // owners: the thread, its tensors and operations on the device
  DeviceLink::Marks marks;           ///< of streams that write or read the spans before it
  transport::Buffer staged;          ///< owns what `in` shows when the caller could not wait
  transport::Buffer landing;         ///< the floats on the host, where the codec has no twin
  ConstArrayView in;                 ///< the caller's while the operation's are those of the landing
  ArrayView out;
  bool lands = false;  ///< what `landing` holds at the end is still to be copied to `out`
};

struct Operation {
  enum class Verb : std::uint8_t { kInit, kPush, kPull, kPushPull, kReadState, kWriteState };
  Verb verb = Verb::kPushPull;
  ConstArrayView in;
  ArrayView out;
  std::vector<std::byte> staged;  ///< owns what `in` shows when the caller could not wait
  std::int32_t priority = 0;
  double scale = 1;                ///< in float32 unless `out` is of float64
  std::vector<ArrayView> scatter;  ///< of several tensors in one: where the parts of `out` are copied to; on
                                   ///< a device those of `in` come from there too
  std::uint64_t number = 0;        ///< among all pushes, when they go in order; of states: the step
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

  ConstArrayView in_of(const Part& part) const { return in.subspan(part.offset, part.count); }
  bool pushes() const { return verb == Verb::kPush || verb == Verb::kPushPull; }
  /// False too where the device's floats are handled in a landing on the host.
  bool works_on_device() const { return device && device->landing.size_bytes() == 0; }
};

struct Submission {
  KeyId key = 0;
  Operation operation;
};

}  // namespace gradwire::kvstore
