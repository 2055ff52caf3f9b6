#include "kvstore/client/dense_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kvstore/leftover.h"
#include "kvstore/wire/lossless_frames.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using transport::Kind;
using Verb = Operation::Verb;
using Clock = RoundContext::Clock;

// An operation on a tensor goes from `waiting` to `current`, one at a time. One that has begun ends in
// finish(), and only there. Three counts of the tensor say how far it is. `parts_left` counts parts without a
// result. `jobs` counts work in the pool, or on a device, that uses the caller's memory. `pending` has the
// requests that servers have not answered yet.
//
// A failure never ends an operation whose jobs still run. fail() notes the error, and the last job calls
// finish().

// ------------------------------------------------------------------------------------- operations begin

void DenseRounds::take_in(KeyId key, Operation operation) {
  Tensor& tensor = parts_.tensors[key];
  if (failure_) {
    // The call was posted before its caller could see the failure. Nobody else would end these tickets.
    operation.taken.fail(failure_);
    operation.done.fail(failure_);
    return;
  }
  // Here and not when the round begins: the order of submission is what ranks have in common where a library
  // sums.
  if (operation.pushes()) parts_.client.expect(tensor, operation);
  // A push_pull's memory is the caller's until its answer is there; a push's caller goes on once it is taken.
  if (operation.verb == Verb::kPush && tensor.current) {
    // Behind a held push all later ones are held, though a smaller one might find room: stage_held() takes
    // them in order, and relies on the held ones being the last pushes of the queue.
    operation.is_held = tensor.held_count > 0 || !stage(operation);
    if (operation.is_held) ++tensor.held_count;
  }
  tensor.waiting.push_back(std::move(operation));
  start_next(tensor);
}

void DenseRounds::start_next(Tensor& tensor) {
  if (tensor.current || tensor.waiting.empty()) return;
  tensor.current = std::move(tensor.waiting.front());
  tensor.waiting.pop_front();
  // Its turn came before there was room. It is encoded from the memory of its caller, which waits until then.
  if (std::exchange(tensor.current->is_held, false)) --tensor.held_count;
  stage_held(tensor);
  tensor.error = nullptr;
  // Called when somebody is to be warned. By then start_push() has counted this round in `step`.
  const auto name = [&tensor] {
    return fmt::format("key '{}' step {} has", tensor.spec.name, tensor.step == 0 ? 0 : tensor.step - 1);
  };
  tensor.pending = parts_.pending.begin(name, Clock::now());
  tensor.parts_left = tensor.parts.size();
  // Servers were told before this thread was: what they send from now on is of the new kind.
  if (std::exchange(tensor.weight_replies, weight_replies_) != weight_replies_) {
    tensor.forget_weight();
    tensor.value_current = false;  // as it was sent; a pull brings it as it is sent now
  }
  active_.insert(&tensor);
  context_.spans.started(tensor);
  start(tensor);
}

void DenseRounds::start(Tensor& tensor) {
  try {
    switch (tensor.current->verb) {
      case Verb::kInit:
        return start_init(tensor);
      case Verb::kPull:
        return start_pull(tensor);
      case Verb::kReadState:
      case Verb::kWriteState:
        return start_state(tensor);
      case Verb::kPush:
      case Verb::kPushPull:
        // For the whole round: parts, repeated requests and the answer must have one codec, also if another
        // is set meanwhile.
        tensor.use(parts_.tensors.compression_in_round(tensor));
        tensor.met_nonfinite = false;
        if (!tensor.current->device || parts_.devices.settle_there(tensor)) return start_push(tensor);
        // The codec has no twin there: the floats are landed first.
        return parts_.devices.land(tensor, [this, &tensor](std::exception_ptr error) {
          // The engine may have failed while the floats crossed. Then this job is the last, and has to end
          // the operation.
          if (error || tensor.error) return job_done(tensor, error);
          --tensor.jobs;
          try {
            // This runs in a task of the loop, where nothing above catches, unlike start()'s own call. The
            // job was land()'s; those of the parts are counted one by one.
            start_push(tensor);
          } catch (...) {
            context_.fail(std::current_exception());
          }
        });
    }
  } catch (...) {  // a device, or memory. Later: our caller is not done with this tensor
    context_.fail(std::current_exception());
  }
}

void DenseRounds::start_push(Tensor& tensor) {
  const Operation& operation = *tensor.current;
  const auto& codec = tensor.codec();
  const std::uint64_t elements = tensor.spec.elements();
  // The round before may have been on a device, and has left the residual there.
  if (!operation.works_on_device()) {
    tensor.settle_on_host();
    // A tensor that is never compressed has no residual, and takes no memory for one.
    if (codec.lossy() && parts_.tensors.keeps_residuals() && tensor.residual.empty())
      tensor.residual.assign_zeros(elements);
    if (codec.agrees_scales()) tensor.scales.resize(tensor.unit_count());
  }
  // Before any part is encoded: encoding changes the residual, and copies it only where room was made here.
  parts_.residuals.keep_what_was(tensor);
  // Where pushes are applied at once, a push without a pull is only acknowledged. There is no answer to keep.
  if (operation.verb == Verb::kPush && !context_.options.async) prepare_answer(tensor);
  tensor.value_current = false;  // until this round's answer is there
  tensor.is_shown = operation.verb == Verb::kPushPull;
  // A checkpoint's scales are those of the round before this one. A codec that is set later must not take
  // them.
  tensor.restored_scales_of.clear();
  ++tensor.step;
  raw_bytes_ += elements * (operation.in.is_float64() ? sizeof(double) : sizeof(float));
  tensor.parts_to_take = tensor.parts.size();
  for (const std::size_t part : tensor.turns) push_part(tensor, part);
}

/// Has a push's sum come to the tensor, where the pull behind it finds it.
void DenseRounds::prepare_answer(Tensor& tensor) {
  Operation& push = *tensor.current;
  const std::uint64_t elements = tensor.spec.elements();
  const bool is_wide = tensor.codec().as_float64() != nullptr;
  tensor.value_on_device = push.works_on_device();
  // The sum comes to one place: floats or doubles here, or memory of the device.
  tensor.value.resize(tensor.value_on_device || is_wide ? 0 : elements);
  tensor.value64.resize(is_wide ? elements : 0);
  if (is_wide) {
    push.out = tensor.value64;
  } else {
    push.out = tensor.value_on_device ? tensor.on_device->value() : std::span<float>(tensor.value);
  }
}

void DenseRounds::push_part(Tensor& tensor, std::size_t index) {
  const Operation& operation = *tensor.current;
  if (operation.works_on_device()) {
    return parts_.devices.encode(tensor, index,
                                 [this, &tensor, index](PushPayload payload, std::exception_ptr error) {
                                   encoded(tensor, index, std::move(payload), error);
                                 });
  }
  if (!is_payload_already(tensor)) return encode(tensor, index);
  const auto values = operation.in_of(tensor.parts[index].part).bytes();
  // A sum that a host's leader relays has no caller that keeps it: the frames in the socket share its
  // ownership.
  const auto keep = [owner = operation.owner] {};
  // encoded() ends a job, as it does for parts that the pool has encoded.
  ++tensor.jobs;
  encoded(tensor, index,
          {operation.owner ? Buffer::borrow(values, keep) : Buffer::borrow(values), tensor.push_flags()},
          nullptr);
}

/// Whether the caller's own memory is what a push sends, and is there until it is answered.
bool DenseRounds::is_payload_already(const Tensor& tensor) {
  const compress::Codec& codec = tensor.codec();
  const auto sent = codec.as_float64() == nullptr ? ElementType::kFloat32 : ElementType::kFloat64;
  // A leftover is added to the values, which needs a copy. push() gives its caller the memory back before the
  // socket has sent it, so it needs one too.
  return !codec.lossy() && !tensor.has_leftover() && tensor.current->in.type() == sent &&
         tensor.current->verb == Verb::kPushPull;
}

void DenseRounds::start_pull(Tensor& tensor) {
  const Operation& pull = *tensor.current;
  // Deltas lag behind the server's weight. The first pull after a push brings what all workers hold, so that
  // they agree. The next one brings the server's own weight (wire/PROTOCOL.md, "Weights").
  const bool is_more = tensor.is_shown || pull.is_for_servers_own;
  tensor.asks_for_servers_own = is_more && tensor.weight_replies->are_deltas();
  // A device has no float64: a pull into one of a value there asks the servers.
  const bool is_here = tensor.value_current && !(tensor.value_on_device && pull.out.is_float64());
  const bool asks = !is_here || tensor.asks_for_servers_own;
  // Answers to pulls are decoded on the host, and ended() copies them to the device.
  if (asks && pull.works_on_device()) parts_.devices.land(tensor, {});
  tensor.is_shown = true;
  if (!asks) return bring_value(tensor);
  ++tensor.pulls;
  for (std::size_t part = 0; part < tensor.parts.size(); ++part)
    parts_.client.send(tensor, part, Kind::kPull);
}

/// Copies what the last push brought to where a pull wants it.
void DenseRounds::copy_value(const Tensor& tensor, ArrayView out) {
  if (tensor.value64.empty()) return copy_floats(tensor.value, out);
  if (out.is_float64()) {
    std::ranges::copy(tensor.value64, out.doubles().begin());
    return;
  }
  std::vector<float> floats(out.size());
  copy_as_floats(tensor.value64, floats);
  copy_floats(floats, out);
}

/// Answers a pull with what the last push brought.
void DenseRounds::bring_value(Tensor& tensor) {
  const Operation& pull = *tensor.current;
  // The whole key is copied by one job.
  tensor.parts_left = 1;
  // The flag came with the answer to the push. Whoever uses its sum by a pull has to know it as well.
  if (tensor.met_nonfinite) pull.done.note_nonfinite();
  // Nor does it take one from the host.
  if (pull.device && !tensor.value64.empty())
    tensor.value.assign(tensor.value64.begin(), tensor.value64.end());
  if (pull.device || tensor.value_on_device) return parts_.devices.copy_value(tensor, job_of(tensor));
  ++tensor.jobs;
  context_.pool.submit(pull.priority, [this, &tensor] {
    copy_value(tensor, tensor.current->out);
    context_.loop->post([this, &tensor] { job_done(tensor, nullptr); });
  });
}

void DenseRounds::start_init(Tensor& tensor) {
  ++tensor.pulls;
  const Operation& init = *tensor.current;
  for (std::size_t index = 0; index < tensor.parts.size(); ++index) {
    const auto values = init.in_of(tensor.parts[index].part).bytes();
    parts_.client.send(tensor, index, Kind::kInit, {Buffer::borrow(values), 0});
  }
}

void DenseRounds::start_state(Tensor& tensor) {
  const Operation& operation = *tensor.current;
  // A state is of one part, so the others have no request.
  tensor.parts_left = 1;
  ++tensor.pulls;
  if (operation.verb == Verb::kReadState) return parts_.client.send(tensor, operation.part, Kind::kReadState);
  parts_.client.send(tensor, operation.part, Kind::kWriteState, {operation.state->share(), 0});
}

// ------------------------------------------------------------------------------------- pushes ahead

/// Takes a push's values while the round before is in flight: its caller waits only until they are taken.
/// Returns false where there is no room for them.
bool DenseRounds::stage(Operation& operation) {
  const std::uint64_t most = context_.options.push_ahead_bytes;
  const std::uint64_t bytes = operation.in.bytes().size() + kAheadBytes;
  // A push that is larger than the bound is never taken ahead. It is held until its own round begins.
  if (bytes > most || ahead_bytes_ > most - bytes) return false;
  operation.ahead_bytes = bytes;
  ahead_bytes_ += bytes;
  if (operation.device) {
    parts_.devices.stage(operation);
    return true;
  }
  const auto given = operation.in.bytes();
  operation.staged.assign(given.begin(), given.end());
  operation.in = {operation.in.type(), operation.staged};
  operation.taken.succeed();
  return true;
}

/// Takes what is held of a tensor, in order, as far as there is room. Looked for when a round of the tensor
/// is over and not when there is room elsewhere: so what a push waits for is a round of its own key, and
/// workers that wait for one another are found (standstill.h).
void DenseRounds::stage_held(Tensor& tensor) {
  auto next = tensor.waiting.end();
  // Held pushes are the last ones of the queue, but pulls may stand between them.
  for (std::size_t left = tensor.held_count; left > 0;) left -= (--next)->is_held ? 1 : 0;
  for (; tensor.held_count > 0; ++next) {
    if (!next->is_held) continue;
    // In order: a smaller push behind this one waits too, or callers would continue out of order.
    if (!stage(*next)) return;
    next->is_held = false;
    --tensor.held_count;
  }
}

// ------------------------------------------------------------------------------------- encode and decode

void DenseRounds::encode(Tensor& tensor, std::size_t index) {
  ++tensor.jobs;
  context_.pool.submit(tensor.current->priority, [this, &tensor, index] {
    const auto begin = Clock::now();
    PushPayload payload;
    std::exception_ptr error;
    try {
      // A job must not throw (codec_pool.h): the error ends the round in the loop.
      payload = parts_.encoder.encode(tensor, index);
      context_.spans.note(Stage::kEncode, tensor, index, begin, payload.bytes.size_bytes());
    } catch (...) {
      error = std::current_exception();
    }
    context_.count_codec_time(begin);
    context_.loop->post([this, &tensor, index, payload = std::move(payload), error]() mutable {
      encoded(tensor, index, std::move(payload), error);
    });
  });
}

void DenseRounds::encoded(Tensor& tensor, std::size_t part, PushPayload payload, std::exception_ptr error) {
  // Nothing of a round that has failed is sent any more.
  if (error || tensor.error) return job_done(tensor, error);
  --tensor.jobs;
  // All parts are encoded, so nothing reads the caller's memory any more. Of a staged push this was said
  // before.
  if (--tensor.parts_to_take == 0 && tensor.current->verb == Verb::kPush) tensor.current->taken.succeed();
  parts_.client.send(tensor, part, Kind::kPush, std::move(payload));
}

void DenseRounds::answered(Tensor& tensor, std::size_t index, Frame answer) {
  ++tensor.jobs;
  if ((answer.header.flags & transport::kFlagNonfinite) != 0) {
    tensor.current->done.note_nonfinite();
    tensor.met_nonfinite |= tensor.current->verb == Verb::kPush;  // pulls that follow a push bring its sum
  }
  context_.pool.submit(tensor.current->priority,
                       [this, &tensor, index, answer = std::move(answer),
                        arrived = context_.arrived]() mutable { decode(tensor, index, answer, arrived); });
}

/// In the pool.
void DenseRounds::decode(Tensor& tensor, std::size_t index, Frame& answer, Clock::time_point arrived) {
  const auto begin = Clock::now();
  context_.spans.note(Stage::kReceive, tensor, index, arrived, answer.payload.size_bytes());
  // In the pool, because it reads every byte: the loop has answers of other parts to hand out.
  if (!answer.payload.is_intact())
    return context_.loop->post([this, &tensor, index] { damaged(tensor, index); });
  parts_.client.note_staleness(tensor.parts[index], answer.header);
  std::exception_ptr error;
  try {
    // A bad answer throws from here on. It ends the round, or the pull that it is for.
    restore(answer, context_.buffers);
    parts_.weights.take(tensor, index, answer);
    if (tensor.current->works_on_device())
      return parts_.devices.decode(tensor, index, answer, job_of(tensor));
    parts_.decoder.decode(tensor, index, answer);
    context_.spans.note(Stage::kDecode, tensor, index, begin, answer.header.count * sizeof(float));
  } catch (...) {
    error = std::current_exception();
  }
  context_.count_codec_time(begin);
  context_.loop->post([this, &tensor, error] { job_done(tensor, error); });
}

/// An answer that did not arrive whole is asked for again.
void DenseRounds::damaged(Tensor& tensor, std::size_t index) {
  // The operation has failed meanwhile. This job may be the last that it waits for.
  if (tensor.error) return job_done(tensor, nullptr);
  if (parts_.client.ask_again(tensor, index)) {
    --tensor.jobs;
    return;
  }
  const std::string server = parts_.client.name_of_server(tensor.parts[index]);
  job_done(tensor, std::make_exception_ptr(transport::TransportError(fmt::format(
                       "the answers of {} for key '{}' arrive damaged", server, tensor.spec.name))));
}

// ------------------------------------------------------------------------------------- operations end

DeviceRounds::Next DenseRounds::job_of(Tensor& tensor) {
  return [this, &tensor](std::exception_ptr error) { job_done(tensor, error); };
}

void DenseRounds::job_done(Tensor& tensor, std::exception_ptr error) {
  --tensor.jobs;
  const bool pulls = tensor.current->verb == Verb::kPull;
  // fail_now() calls fail(), which ends this operation if this was its last job. After a failure only the
  // count matters.
  if (error && !failure_ && !pulls) return context_.fail_now(error);  // a round that others share is lost
  ended(tensor, error);
}

void DenseRounds::ended(Tensor& tensor, std::exception_ptr error) {
  if (error && !tensor.error) tensor.error = error;
  if (tensor.parts_left > 0) --tensor.parts_left;
  // Jobs in the pool still use the caller's memory, also where the operation has failed already.
  if (tensor.jobs > 0 || (tensor.parts_left > 0 && !tensor.error)) return;
  // lift() clears `lands`, and its job comes back here.
  if (!tensor.error && tensor.current->device && tensor.current->device->lands)
    return parts_.devices.lift(tensor, job_of(tensor));
  finish(tensor, tensor.error);
}

void DenseRounds::finish(Tensor& tensor, std::exception_ptr error) {
  Operation operation = std::move(*tensor.current);
  tensor.current.reset();
  parts_.pending.end(tensor.pending);
  // Where the operation failed, a payload that was not answered may borrow the caller's memory.
  for (TensorPart& part : tensor.parts) part.payload = {};
  if (error) tensor.forget_weight();  // some of it may have come; servers think that all of it has
  if (operation.pushes() && !error) {
    const bool is_of_a_round = !context_.options.async;  // else others push meanwhile
    tensor.value_current = operation.verb == Verb::kPush && is_of_a_round;
    // The reply has brought the next round's scales. They are void if another codec was set meanwhile, and
    // there are none if a part was answered in float32 (wire/PROTOCOL.md, "Leftovers").
    tensor.scales_known = tensor.compression->codec->agrees_scales() && parts_.tensors.is_in_force(tensor) &&
                          std::ranges::none_of(tensor.parts, &TensorPart::brought_floats);
    // Not so if an element was not finite: that one keeps its residual for a later round.
    if (tensor.has_leftover() && tensor.residual.is_all_sent()) tensor.residual.clear();
  }
  active_.erase(&tensor);
  ahead_bytes_ -= operation.ahead_bytes;
  if (error) {
    operation.taken.fail(error);
    operation.done.fail(error);
  } else {
    operation.done.succeed();
  }
  start_next(tensor);
  if (!active_.empty()) return;
  // No push is unanswered now, so the push window begins anew (fusion/push_window.h).
  parts_.client.all_ended();
  for (const Ticket& ticket : std::exchange(waiting_idle_, {})) ticket.succeed();
}

void DenseRounds::fail(const std::exception_ptr& error) {
  failure_ = error;
  for (const auto& tensor : parts_.tensors.all()) {
    tensor->held_count = 0;
    for (const Operation& operation : std::exchange(tensor->waiting, {})) {
      ahead_bytes_ -= operation.ahead_bytes;
      operation.taken.fail(error);
      operation.done.fail(error);
    }
  }
  // A copy, because finish() erases from active_.
  for (Tensor* tensor : std::vector<Tensor*>(active_.begin(), active_.end())) {
    tensor->error = error;
    // Late answers are dropped from now on. With jobs in the pool, the last one of them finishes the
    // operation.
    tensor->pending->requests.clear();
    if (tensor->jobs == 0) finish(*tensor, error);
  }
}

void DenseRounds::when_idle(const Ticket& ticket) {
  if (active_.empty()) return ticket.succeed();
  waiting_idle_.push_back(ticket);
}

void DenseRounds::when_handed_over(const Ticket& ticket) {
  for (Tensor* tensor : active_) parts_.client.ask_what_is_not_held(*tensor);
  waiting_handed_over_.push_back(ticket);
  tell_handed_over();
}

bool DenseRounds::is_handed_over(const Tensor& tensor) {
  const auto is_held = [](const auto& entry) { return entry.second.is_held; };
  // A part that is being encoded has no request yet, so jobs count too.
  return tensor.waiting.empty() && tensor.jobs == 0 && std::ranges::all_of(tensor.pending->requests, is_held);
}

void DenseRounds::tell_handed_over() {
  if (!std::ranges::all_of(active_, [](const Tensor* tensor) { return is_handed_over(*tensor); })) return;
  for (const Ticket& ticket : std::exchange(waiting_handed_over_, {})) ticket.succeed();
}

}  // namespace gradwire::kvstore
