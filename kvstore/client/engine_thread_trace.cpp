// EngineThread's spans: what happened to each part, for a timeline.
#include "kvstore/client/engine_tensor.h"

namespace gradwire::kvstore {

using Verb = EngineThread::Operation::Verb;

namespace {

bool pushes(const EngineThread::Operation& operation) {
  return operation.verb == Verb::kPush || operation.verb == Verb::kPushPull;
}

}  // namespace

/// On the caller's thread, before anything can wait for the operation. What is no round has no stages.
void EngineThread::note_submitted(KeyId key, Operation& operation) const {
  if (operation.verb == Verb::kInit) return;
  operation.submitted = Clock::now();
  Span wait;
  wait.key = key;
  wait.priority = operation.priority;
  wait.stage = Stage::kWait;
  operation.done.note_wait(tracer_, wait);
  if (operation.verb == Verb::kPush) operation.taken.note_wait(tracer_, wait);
}

/// The first words on a round: its parts have been ready since it was submitted. A pull waits for the last
/// push.
void EngineThread::note_start(const Tensor& tensor) const {
  const Operation& operation = *tensor.current;
  if (operation.submitted == Clock::time_point()) return;
  Span span;
  if (!pushes(operation) && tensor.step == 0)  // a first value is of no round
    return operation.done.note_wait(Tracer(), span);
  span.key = tensor.id;
  span.step = pushes(operation) ? tensor.step : tensor.step - 1;
  span.priority = operation.priority;
  span.bytes = tensor.spec.elements() * sizeof(float);
  span.stage = Stage::kWait;
  operation.done.note_wait(tracer_, span);
  if (operation.verb == Verb::kPush) operation.taken.note_wait(tracer_, span);
  if (!pushes(operation)) return;
  span.stage = Stage::kReady;
  span.begin = operation.submitted;
  span.end = Clock::now();
  for (const PartState& state : tensor.parts) {
    span.offset = state.part.offset;
    span.bytes = state.part.count * sizeof(float);
    span.peer = state.part.server;
    tracer_.add(span);
  }
}

/// In the loop or the pool, while the tensor's round is in flight. What is no push has no stages.
void EngineThread::note(Stage stage, const Tensor& tensor, std::size_t index, Clock::time_point begin,
                        std::uint64_t bytes) const {
  if (!pushes(*tensor.current)) return;
  const Part& part = tensor.parts[index].part;
  Span span;
  span.begin = begin;
  span.end = Clock::now();
  span.key = tensor.id;
  span.offset = part.offset;
  span.bytes = bytes;
  span.step = tensor.step - 1;
  span.priority = tensor.current->priority;
  span.peer = part.server;
  span.stage = stage;
  tracer_.add(span);
}

}  // namespace gradwire::kvstore
