#include "kvstore/client/dense_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kvstore/wire/answer.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;
using transport::Node;

DenseClient::DenseClient(TensorTable& tensors, PendingRequests& pending, Outbox& outbox,
                         const Failover& failover, const WeightReceiver& weights, StalenessCounts& staleness,
                         const Settings& settings, Events events)
    : tensors_(tensors),
      pending_(pending),
      outbox_(outbox),
      failover_(failover),
      weights_(weights),
      staleness_(staleness),
      settings_(settings),
      events_(std::move(events)),
      in_order_(settings.in_order ? std::make_unique<SubmissionOrder>() : nullptr) {}

void DenseClient::expect(const Tensor& tensor, Operation& push) {
  if (in_order_) push.number = in_order_->expect(tensor.parts.size());
}

/// The round's, of a push. What is of no round has a number of its own, so that a late answer to what was
/// asked before is none to this.
std::uint64_t DenseClient::step_of(const Tensor& tensor, const TensorPart& part) {
  if (part.request == Kind::kPush) return tensor.step - 1;
  // A load of an optimizer's states is numbered by its caller, above all steps of rounds: a server applies
  // each once.
  if (part.request == Kind::kWriteState && tensor.current->kept == StateScope::kOptimizer)
    return tensor.current->number;
  return kNoStep - tensor.pulls;
}

FrameHeader DenseClient::header_of(const Tensor& tensor, std::size_t index) const {
  const TensorPart& part = tensor.parts[index];
  FrameHeader header;
  header.kind = part.request;
  header.flags = part.flags;
  header.key = tensor.id;
  header.offset = part.part.offset;
  header.count = part.part.count;
  header.priority = tensor.current->priority;
  header.step = step_of(tensor, part);
  header.content = static_cast<std::uint8_t>(weights_.content_of_request(tensor, part));
  if (part.request == Kind::kReadState || part.request == Kind::kWriteState)
    header.content = static_cast<std::uint8_t>(tensor.current->kept);
  if (part.request == Kind::kInit && tensor.current->in.is_float64())
    header.dtype = static_cast<std::uint8_t>(Dtype::kFloat64);
  if (part.request == Kind::kPush) {
    header.codec = static_cast<std::uint8_t>(tensor.compression->codec->wire_id());
    header.codec_parameters = tensor.compression->codec->wire_parameters();
    header.dtype = static_cast<std::uint8_t>(tensor.dtype_of_push());
    header.reply = static_cast<std::uint8_t>(tensor.compression->reply);
    header.program_step = tensor.current->program_step;
  }
  return header;
}

void DenseClient::send(Tensor& tensor, std::size_t index, Kind kind, PushPayload payload) {
  TensorPart& part = tensor.parts[index];
  part.request = kind;
  part.flags = payload.flags;
  part.payload = std::move(payload.bytes);
  part.brought_floats = false;
  part.resends = 0;
  if (kind == Kind::kPush) encoded_bytes_ += part.payload.size_bytes();
  note_request(tensor, index);
  // Noted first: a failure clears what is pending, this request with it.
  if (failover_.has_left(part.part.server))
    return events_.fail(
        std::make_exception_ptr(transport::TransportError(failover_.describe(part.part.server))));
  // A share: the part keeps its payload until it is answered, since a server may say that it never got it.
  Frame frame{header_of(tensor, index), part.payload.share()};
  // Where a library sums, parts are encoded in any order, but its calls must have one order on all ranks. A
  // part that was awaited releases those that were encoded before it.
  if (!in_order_ || kind != Kind::kPush) return outbox_.add(part.part.server, std::move(frame));
  for (Frame& next : in_order_->add(tensor.current->number, index, std::move(frame)))
    outbox_.add(part.part.server, std::move(next));
}

/// What repeats no payload is asked early enough for the answer, which names who is awaited, to be here when
/// a warning is due.
void DenseClient::note_request(Tensor& tensor, std::size_t index) {
  const TensorPart& part = tensor.parts[index];
  // A push counts as small because a probe is repeated in its place, without the payload.
  const bool is_small = part.request == Kind::kPush || part.payload.size_bytes() == 0;
  const auto patience = is_small ? settings_.question_timeout : settings_.retry_timeout;
  const auto ask = [this, &tensor, index] { repeat(tensor, index); };
  pending_.add(tensor.pending, index, {part.part.server, {patience, patience}, ask}, Clock::now());
}

void DenseClient::repeat(Tensor& tensor, std::size_t index) {
  if (tensor.parts[index].request != Kind::kPush) return send_copy(tensor, index);  // harmless when repeated
  // What waits for its turn has not been sent: asked for, it would be missed, and sent out of turn.
  if (in_order_ && in_order_->holds(tensor.current->number, index)) return;
  FrameHeader header = header_of(tensor, index);
  header.kind = Kind::kProbe;
  outbox_.add(tensor.parts[index].part.server, {header, Buffer()});
}

/// A copy: what the first one is answered with may come while this one is still here, and then the caller has
/// its memory back.
void DenseClient::send_copy(Tensor& tensor, std::size_t index) {
  const TensorPart& part = tensor.parts[index];
  // Its answer has been here, damaged: the server has it, whatever a late answer to an earlier copy says.
  if (part.request == Kind::kPush && part.payload.size_bytes() == 0) return;
  // It has not left yet: a question about it, which is small, may overtake it.
  const FrameHeader header = header_of(tensor, index);
  if (outbox_.holds(part.part.server, header, part.payload.size_bytes())) return;
  // The first copy was lost, so the push window must not count it as unanswered twice.
  if (part.request == Kind::kPush) outbox_.sends_again(part.part.server, part.payload.size_bytes());
  Frame frame{header, part.payload.copy()};
  frame.payload.seal();
  outbox_.add(part.part.server, std::move(frame));
}

bool DenseClient::ask_again(Tensor& tensor, std::size_t index) {
  if (tensor.parts[index].resends++ == kMaxResends) return false;
  // handle() has ended the request and dropped its payload. A server that has answered has the push, so that
  // a probe is enough.
  note_request(tensor, index);
  repeat(tensor, index);
  return true;
}

void DenseClient::ask_what_is_not_held(Tensor& tensor) {
  for (auto& [number, request] : tensor.pending->requests) {
    if (!request.is_held) PendingRequests::repeat(request, Clock::now());
  }
}

void DenseClient::handle(Node from, Frame frame) {
  const FrameHeader& header = frame.header;
  if (header.key >= tensors_.size()) return;
  Tensor& tensor = tensors_[header.key];
  // A mirror's frames come here under the rank of the server that it replaces (failover.h).
  const auto part = std::ranges::find_if(tensor.parts, [&](const TensorPart& one) {
    return one.part.offset == header.offset && one.part.server == from.rank;
  });
  // Answers to what nobody waits for any more (a repeated request) are dropped.
  if (part == tensor.parts.end() || !tensor.current || header.count != part->part.count) return;
  const auto index = static_cast<std::size_t>(part - tensor.parts.begin());
  const auto request = tensor.pending->requests.find(index);
  if (request == tensor.pending->requests.end() || header.step != step_of(tensor, *part)) return;
  PendingRequests::heard(request->second);
  const bool brings_values = header.kind == Kind::kReply || header.kind == Kind::kValue;
  if (!brings_values && !frame.payload.is_intact())
    return;  // a word about the answer: it will be asked for again
  switch (header.kind) {
    case Kind::kReply:
    case Kind::kValue:
      note_answer(*part);
      pending_.answered(tensor.pending, index);
      part->payload = {};
      part->brought_floats = header.kind == Kind::kValue;
      // On this thread, because it sizes memory that the jobs of all parts write to.
      weights_.expect(tensor, *part, header);
      return events_.answered(tensor, index, std::move(frame));
    case Kind::kState:  // to a read that was repeated, and has given way to something else
      if (part->request != Kind::kReadState) return;
      pending_.answered(tensor.pending, index);
      *tensor.current->state = std::move(frame.payload);
      return events_.ended(tensor, nullptr);
    case Kind::kAck:
      if (part->request == Kind::kPush && !settings_.async) return;  // no answer to one of a round
      note_answer(*part);
      pending_.answered(tensor.pending, index);
      part->payload = {};
      note_staleness(*part, header);
      return events_.ended(tensor, nullptr);
    case Kind::kHeld:
      request->second.is_held = true;
      request->second.awaited = awaited_in(frame);
      // Nobody: the round is upstream of the server, and who waits there knows for whom.
      if (request->second.awaited.empty()) tensor.pending->began = Clock::now();
      return;
    // The push was lost on the way, or with a server that died before its mirror had it.
    case Kind::kMissing:
      return send_copy(tensor, index);
    case Kind::kError:
      return refused(tensor, index, frame);
    default:
      return;
  }
}

/// While its payload is here.
void DenseClient::note_answer(const TensorPart& part) {
  if (part.request == Kind::kPush)
    outbox_.answered(part.part.server, part.payload.size_bytes(), Clock::now());
}

void DenseClient::refused(Tensor& tensor, std::size_t index, const Frame& frame) {
  TensorPart& part = tensor.parts[index];
  const bool damaged = frame.header.content == static_cast<std::uint8_t>(Refusal::kSendAgain);
  if (damaged && part.resends++ < kMaxResends) return send_copy(tensor, index);
  const auto text = fmt::format("{} refused key '{}': {}", failover_.name(part.part.server), tensor.spec.name,
                                payload_text(frame));
  // The other workers wait for this push too. What is of no round ends for its caller alone.
  if (part.request == Kind::kPush)
    return events_.lost(std::make_exception_ptr(transport::TransportError(text)));
  pending_.answered(tensor.pending, index);
  events_.ended(tensor, std::make_exception_ptr(std::invalid_argument(text)));
}

void DenseClient::note_staleness(const TensorPart& part, const FrameHeader& answer) {
  if (settings_.async && part.request == Kind::kPush) staleness_.add(staleness_of(answer));
}

}  // namespace gradwire::kvstore
