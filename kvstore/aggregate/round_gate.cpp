#include "kvstore/aggregate/round_gate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kvstore/wire/answer.h"

namespace gradwire::kvstore {

using transport::FrameHeader;

void RoundGate::require_alike(std::uint32_t worker, const FrameHeader& push, const FrameHeader& first) const {
  const bool is_alike = push.codec == first.codec && push.codec_parameters == first.codec_parameters &&
                        push.reply == first.reply && push.dtype == first.dtype &&
                        ((push.flags ^ first.flags) & transport::kFlagSegments) == 0;
  if (is_alike) return;
  throw Refused{
      how_, fmt::format("push of {} {} step {}: worker {} sent codec {} ({:#x}), reply {}; worker {} sent "
                        "codec {} ({:#x}), reply {}; give every rank the same compression",
                        what_, push.key, push.step, worker, push.codec, fmt::join(push.codec_parameters, ","),
                        push.reply, first.sender.rank, first.codec, fmt::join(first.codec_parameters, ","),
                        first.reply)};
}

void RoundGate::require_next(std::uint32_t worker, const FrameHeader& push, const PushClocks& clocks) const {
  const std::uint64_t next_step = clocks.next_step_of(worker);
  // Earlier steps are repetitions. A worker's first push may have any step.
  if (push.step <= next_step || !clocks.has_pushed(worker)) return;
  throw Refused{how_, fmt::format("push of {} {} is for step {} of worker {}, expected step {}", what_,
                                  push.key, push.step, worker, next_step)};
}

void RoundGate::require_optimizer(const FrameHeader& push, bool is_set) const {
  if (is_set) return;
  throw Refused{how_, fmt::format("push of {} {}: pushes are applied at once, and there is no optimizer that "
                                  "could; set one first",
                                  what_, push.key)};
}

std::string RoundGate::describe(std::uint32_t worker, std::uint64_t step, std::uint64_t key) const {
  return gone_.describe(worker, fmt::format("step {} of {} {}", step, what_, key),
                        "; every worker must run the same number of steps");
}

}  // namespace gradwire::kvstore
