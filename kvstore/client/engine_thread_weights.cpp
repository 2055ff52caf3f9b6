// EngineThread: weights that servers send rounded, or as what changes the ones that this worker has.
#include <fmt/format.h>

#include <cstring>

#include "kvstore/client/engine_tensor.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;
using Verb = EngineThread::Operation::Verb;

/// Whether the answer, if it is a weight, is told to this worker and not shown to anybody: the next one may
/// change it.
bool EngineThread::asks_for_weight(const Operation& operation, const PartState& state) const {
  if (!options_.at_once) return state.request == Kind::kPush;
  return state.request == Kind::kPull || operation.verb == Verb::kPushPull;
}

Content EngineThread::content_of_request(const Tensor& tensor, const PartState& state) const {
  if (state.request == Kind::kPull && !options_.at_once && tensor.asks_for_servers_own)
    return Content::kWeight;
  if (!asks_for_weight(*tensor.current, state)) return Content::kSum;
  if (state.holds_weight) return Content::kWeightDelta;
  return options_.at_once && state.request == Kind::kPush ? Content::kWeight : Content::kSum;
}

/// Makes room for a weight that is to be held; jobs in the pool then write to it.
void EngineThread::expect_weight(Tensor& tensor, const PartState& state, const FrameHeader& answer) const {
  const bool is_weight = answer.kind == Kind::kValue && content_of(answer) != Content::kSum;
  const bool is_held = is_weight && tensor.weight_replies->are_deltas();
  if (is_held && asks_for_weight(*tensor.current, state)) tensor.held.resize(tensor.spec.elements());
}

/// Makes of an answer that is a weight one of floats, and holds them where deltas are to come. In the pool.
void EngineThread::take_weight(Tensor& tensor, std::size_t index, Frame& answer) {
  const FrameHeader& header = answer.header;
  const Content content = content_of(header);
  if (header.kind != Kind::kValue || content == Content::kSum) return;
  PartState& state = tensor.parts[index];
  const WeightReplies& replies = *tensor.weight_replies;
  const bool is_whole = content != Content::kWeightDelta && content != Content::kWeightRounded;
  if (header.content > static_cast<std::uint8_t>(Content::kWeightRounded))
    throw compress::DecodeError(fmt::format("weight: content {} is not known", header.content));
  if (!is_whole && (replies.form() == WeightReplies::Form::kFloats ||
                    header.codec != static_cast<std::uint8_t>(replies.codec().wire_id()) ||
                    replies.are_deltas() != (content == Content::kWeightDelta))) {
    throw compress::DecodeError(fmt::format("weight: content {} of codec {}, expected weights={}",
                                            header.content, header.codec, replies.text()));
  }
  if (content == Content::kWeightRounded) {
    Buffer floats = buffers_.take(state.part.count * sizeof(float));
    floats.truncate(state.part.count * sizeof(float));
    replies.codec().decode(answer.payload.bytes(),
                           {reinterpret_cast<float*>(floats.bytes().data()), state.part.count});
    answer.payload = std::move(floats);
    return;
  }
  if (!replies.are_deltas() || !asks_for_weight(*tensor.current, state)) return;
  const auto held = std::span(tensor.held).subspan(state.part.offset, state.part.count);
  if (content == Content::kWeightDelta) {
    if (!state.holds_weight) throw compress::DecodeError("weight: a delta to one that is not held here");
    add_delta(replies.codec(), answer.payload.bytes(), held);
    answer.payload = Buffer::borrow(std::as_bytes(held));
  } else {
    state.holds_weight = false;
    if (answer.payload.size_bytes() != held.size_bytes()) return;  // refused where it is decoded
    std::memcpy(held.data(), answer.payload.bytes().data(), held.size_bytes());
  }
  state.holds_weight = true;
}

}  // namespace gradwire::kvstore
