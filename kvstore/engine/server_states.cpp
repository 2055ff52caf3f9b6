#include "kvstore/engine/server_states.h"

#include <utility>

#include "kvstore/aggregate/partition_state.h"
#include "kvstore/engine/engine_context.h"

namespace gradwire::kvstore {

using transport::Buffer;

namespace {

/// Reads or writes a state, as the verb says. Waits for the server.
void carry_out(RoundThread& job, Operation::Verb verb, const HeldPart& part, StateScope kept, Buffer& state,
               std::uint64_t number = kNoStep) {
  Operation operation;
  operation.verb = verb;
  operation.kept = kept;
  operation.part = part.part;
  operation.state = &state;
  operation.number = number;
  const Ticket done = operation.done;
  // Behind what is in flight on the tensor, as any operation. The state is the caller's, who waits here.
  job.submit(part.tensor, std::move(operation));
  done.wait();
}

}  // namespace

std::vector<HeldPart> ServerStates::parts() const {
  std::vector<HeldPart> held;
  RoundThread& job = context_.rounds.job();
  for (KeyId key = 0; key < context_.keys.size(); ++key) {
    for (const KeyRange& range : context_.keys.own_ranges_of(key)) {
      job.between_rounds(range.tensor, [&] {
        for (std::size_t p = 0; const TensorPart& one : job.tensors()[range.tensor].parts)
          held.push_back(
              {range.tensor, p++, key, range.key_offset + one.part.offset, one.part.count, one.part.offset});
      });
    }
  }
  return held;
}

Buffer ServerStates::read(const HeldPart& part, StateScope kept) const {
  Buffer state;
  carry_out(context_.rounds.job(), Operation::Verb::kReadState, part, kept, state);
  return state;
}

void ServerStates::write(const HeldPart& part, StateScope kept, Buffer state, std::uint64_t number) const {
  carry_out(context_.rounds.job(), Operation::Verb::kWriteState, part, kept, state, number);
}

std::vector<float> ServerStates::residual_of(const HeldPart& part) const {
  return decode_partition_state(read(part, StateScope::kAll).bytes(), part.count).residual;
}

}  // namespace gradwire::kvstore
