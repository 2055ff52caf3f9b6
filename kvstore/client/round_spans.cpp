#include "kvstore/client/round_spans.h"

namespace gradwire::kvstore {

using Verb = Operation::Verb;

void RoundSpans::submitted(KeyId key, Operation& operation) const {
  if (!is_on() || operation.verb == Verb::kInit) return;
  operation.submitted = Clock::now();
  Span wait;
  wait.key = key;
  wait.priority = operation.priority;
  wait.stage = Stage::kWait;
  // The caller may wait before the round begins. started() then adds its step.
  operation.done.note_wait(tracer_, wait);
  if (operation.verb == Verb::kPush) operation.taken.note_wait(tracer_, wait);
}

void RoundSpans::started(const Tensor& tensor) const {
  const Operation& operation = *tensor.current;
  if (!is_on() || operation.submitted == Clock::time_point()) return;
  Span span;
  if (!operation.pushes() && tensor.step == 0)  // a first value is of no round
    return operation.done.note_wait(Tracer(), span);
  span.key = tensor.id;
  span.step = operation.pushes() ? tensor.step : tensor.step - 1;
  span.priority = operation.priority;
  span.bytes = tensor.spec.elements() * sizeof(float);
  span.stage = Stage::kWait;
  operation.done.note_wait(tracer_, span);
  if (operation.verb == Verb::kPush) operation.taken.note_wait(tracer_, span);
  if (!operation.pushes()) return;
  span.stage = Stage::kReady;
  span.begin = operation.submitted;
  span.end = Clock::now();
  for (const TensorPart& part : tensor.parts) {
    span.offset = part.part.offset;
    span.bytes = part.part.count * sizeof(float);
    span.peer = part.part.server;
    tracer_.add(span);
  }
}

void RoundSpans::note(Stage stage, const Tensor& tensor, std::size_t index, Clock::time_point begin,
                      std::uint64_t bytes) const {
  if (!is_on() || !tensor.current->pushes()) return;
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
