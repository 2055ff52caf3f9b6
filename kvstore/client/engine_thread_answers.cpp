// EngineThread: what servers answer, matched to what awaits it, and decoded.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "compress/float64_codec.h"
#include "kvstore/client/engine_tensor.h"
#include "kvstore/wire/answer.h"
#include "kvstore/wire/codec_table.h"
#include "kvstore/wire/protocol.h"
#include "kvstore/wire/shortened.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::FrameHeader;
using transport::Kind;
using transport::Node;
using transport::Role;

namespace {

/// Copies what was received to the tensors that it is of.
void scatter(const EngineThread::Operation& operation) {
  const float* from = operation.out.data();
  for (const std::span<float> tensor : operation.scatter) {
    std::memcpy(tensor.data(), from, tensor.size_bytes());
    from += tensor.size();
  }
}

}  // namespace

void EngineThread::handle(Node from, Frame frame) {
  if (from.role != Role::kServer || mail_.handle(from, frame) || rows_.handle(from, frame)) return;
  if (commands_.handle(from, frame)) return;
  const FrameHeader& header = frame.header;
  if (header.key >= tensors_.size()) return;
  Tensor& tensor = *tensors_[header.key];
  const auto found = std::find_if(tensor.parts.begin(), tensor.parts.end(), [&](const PartState& state) {
    return state.part.offset == header.offset && state.part.server == from.rank;
  });
  // Answers to what nobody waits for any more (a repeated request) are dropped.
  if (found == tensor.parts.end() || found->answered || !tensor.current || header.count != found->part.count)
    return;
  const auto index = static_cast<std::size_t>(found - tensor.parts.begin());
  if (header.step != header_of(tensor, index).step) return;
  const bool is_answer = header.kind == Kind::kReply || header.kind == Kind::kValue;
  if (!is_answer && !frame.payload.is_intact())
    return;  // a word about the answer: it will be asked for again
  switch (header.kind) {
    case Kind::kReply:
    case Kind::kValue:
      found->answered = true;
      found->payload = {};
      found->brought_floats = header.kind == Kind::kValue;
      expect_weight(tensor, *found, header);
      return decode(tensor, index, std::move(frame));
    case Kind::kState:
      if (found->request != Kind::kReadState) return;
      found->answered = true;
      *tensor.current->state = std::move(frame.payload);
      return part_done(tensor, nullptr);
    case Kind::kAck:
      if (found->request == Kind::kPush && !options_.at_once) return;  // no answer to one of a round
      found->answered = true;
      found->payload = {};
      note_staleness(*found, header);
      return part_done(tensor, nullptr);
    case Kind::kHeld:
      found->is_held = true;
      found->awaited = awaited_in(frame);
      if (found->awaited.empty()) tensor.started = Clock::now();  // upstream of it, who waits knows for whom
      return;
    case Kind::kMissing:
      return send_again(tensor, index);
    case Kind::kError:
      return handle_refusal(tensor, index, frame);
    default:
      return;
  }
}

/// A copy: what the first one is answered with may come while this one is still here, and then the caller has
/// its memory back.
void EngineThread::send_again(Tensor& tensor, std::size_t index) {
  PartState& state = tensor.parts[index];
  Frame frame{header_of(tensor, index), state.payload.copy()};
  frame.payload.seal();
  outbox_.add(state.part.server, std::move(frame));
}

void EngineThread::handle_refusal(Tensor& tensor, std::size_t index, const Frame& frame) {
  PartState& state = tensor.parts[index];
  const bool damaged = frame.header.content == static_cast<std::uint8_t>(Refusal::kSendAgain);
  if (damaged && state.resends++ < kMaxResends) return send_again(tensor, index);
  const auto text = fmt::format("{} refused key '{}': {}", failover_.name(state.part.server),
                                tensor.spec.name, payload_text(frame));
  if (state.request != Kind::kPush) {  // nothing that others wait for
    state.answered = true;
    return part_done(tensor, std::make_exception_ptr(std::invalid_argument(text)));
  }
  fail_all(std::make_exception_ptr(transport::TransportError(text)));
}

/// Payloads in the sum that a reply is made of.
std::uint32_t EngineThread::ways_of(const FrameHeader& reply) const {
  const std::uint32_t absent = absent_of(reply.flags);
  if (absent >= rounds_.contributors) {
    throw compress::DecodeError(fmt::format("reply: {} of {} workers are absent from it, expected fewer",
                                            absent, rounds_.contributors));
  }
  return rounds_.contributors - absent;
}

void EngineThread::decode_answer(Tensor& tensor, std::size_t index, const Frame& frame) const {
  const FrameHeader& header = frame.header;
  const Part& part = tensor.parts[index].part;
  Operation& operation = *tensor.current;
  if (operation.out_elements() < part.offset + part.count)
    throw compress::DecodeError("answer: values for a push that asked for none");
  const auto payload = frame.payload.bytes();
  if (dtype_of(header) == Dtype::kFloat64 && !operation.out64.empty()) {
    const auto reply = header.kind == Kind::kValue ? compress::ReplyKind::kSame
                                                   : static_cast<compress::ReplyKind>(header.reply);
    if (header.kind == Kind::kReply && tensor.parts[index].request == Kind::kPush)
      tensor.expect_codec_of_push(header);
    return compress::Float64Codec().decode_reply(payload, reply, operation.scale,
                                                 operation.out64.subspan(part.offset, part.count));
  }
  if (operation.out64.empty())
    return decode_floats(tensor, index, frame, static_cast<float>(operation.scale),
                         operation.out.subspan(part.offset, part.count));
  std::vector<float> floats(part.count);
  decode_floats(tensor, index, frame, 1, floats);
  std::ranges::transform(floats, operation.out64.subspan(part.offset, part.count).begin(),
                         [scale = operation.scale](float value) { return value * scale; });
}

/// An answer as float32, to what a caller has there for the part.
void EngineThread::decode_floats(Tensor& tensor, std::size_t index, const Frame& frame, float scale,
                                 std::span<float> out) const {
  const FrameHeader& header = frame.header;
  const Part& part = tensor.parts[index].part;
  const auto payload = frame.payload.bytes();
  const auto reply = static_cast<compress::ReplyKind>(header.reply);
  const std::uint32_t ways = ways_of(header);
  if (header.kind == Kind::kValue && dtype_of(header) == Dtype::kFloat64) {
    compress::Float64Codec().decode_reply_scaled(payload, 1, compress::ReplyKind::kSame, scale, out, {});
  } else if (header.kind == Kind::kValue) {
    if (payload.size() != out.size_bytes())
      throw compress::DecodeError("value: payload length is not the key's");
    std::memcpy(out.data(), payload.data(), payload.size());
    if (scale != 1) {
      for (float& value : out) value *= scale;
    }
  } else if (tensor.parts[index].request == Kind::kPush) {
    const auto& codec = tensor.codec();
    tensor.expect_codec_of_push(header);
    const auto next = codec.agrees_scales() ? tensor.scales_of(part) : std::span<compress::UnitScale>();
    codec.decode_reply_scaled(payload, ways, reply, scale, out, next);
  } else {  // the answer to a round that may have had another codec; its scales are not ours to use
    const auto codec = codec_named_by(header);
    std::vector<compress::UnitScale> unused(codec->agrees_scales() ? compress::unit_count(part.count) : 0);
    codec->decode_reply_scaled(payload, ways, reply, scale, out, unused);
  }
}

void EngineThread::decode(Tensor& tensor, std::size_t index, Frame frame) {
  ++tensor.jobs;
  if ((frame.header.flags & transport::kFlagNonfinite) != 0) {
    tensor.current->done.note_nonfinite();
    // Pulls that follow a push bring its sum.
    tensor.met_nonfinite |= tensor.current->verb == Operation::Verb::kPush;
  }
  const std::int32_t priority = tensor.current->priority;
  pool_.submit(priority, [this, &tensor, index, frame = std::move(frame), arrived = arrived_]() mutable {
    const auto begin = Clock::now();
    if (tracer_.is_on()) note(Stage::kReceive, tensor, index, arrived, frame.payload.size_bytes());
    if (!frame.payload.is_intact()) return loop_->post([this, &tensor, index] { ask_again(tensor, index); });
    note_staleness(tensor.parts[index], frame.header);
    std::exception_ptr error;
    try {
      restore(frame, buffers_);
      take_weight(tensor, index, frame);
      if (tensor.current->works_on_device()) return decode_on_device(tensor, index, frame);
      decode_answer(tensor, index, frame);
      if (!tensor.current->device) scatter(*tensor.current);
      if (tracer_.is_on()) note(Stage::kDecode, tensor, index, begin, frame.header.count * sizeof(float));
    } catch (...) {
      error = std::current_exception();
    }
    codec_nanoseconds_ += static_cast<std::uint64_t>((Clock::now() - begin).count());
    loop_->post([this, &tensor, error] { job_done(tensor, error); });
  });
}

/// Of an answer that has arrived whole, so that each push counts once.
void EngineThread::note_staleness(const PartState& part, const FrameHeader& answer) {
  if (options_.at_once && part.request == Kind::kPush) staleness_.add(staleness_of(answer));
}

void EngineThread::ask_again(Tensor& tensor, std::size_t index) {
  if (tensor.error) return job_done(tensor, nullptr);
  PartState& state = tensor.parts[index];
  if (state.resends++ == kMaxResends) {
    const auto text = fmt::format("the answers of {} for key '{}' arrive damaged",
                                  failover_.name(state.part.server), tensor.spec.name);
    return job_done(tensor, std::make_exception_ptr(transport::TransportError(text)));
  }
  --tensor.jobs;
  state.answered = false;
  ask(tensor, index);
}

}  // namespace gradwire::kvstore
