#include "kvstore/client/weight_receiver.h"

#include <fmt/format.h>

#include <cstring>
#include <span>
#include <utility>

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

/// Whether the answer, if it is a weight, is told to this worker and not shown to anybody: the next one may
/// change it.
bool WeightReceiver::is_held(const Tensor& tensor, const TensorPart& part) const {
  if (!async_workers_) return part.request == Kind::kPush;
  return part.request == Kind::kPull || tensor.current->verb == Operation::Verb::kPushPull;
}

Content WeightReceiver::content_of_request(const Tensor& tensor, const TensorPart& part) const {
  if (part.request == Kind::kPull && !async_workers_ && tensor.asks_for_servers_own) return Content::kWeight;
  if (!is_held(tensor, part)) return Content::kSum;
  if (part.holds_weight) return Content::kWeightDelta;
  // At once a server sends the weight only to a push that asks for it. A synchronous round always brings one.
  return async_workers_ && part.request == Kind::kPush ? Content::kWeight : Content::kSum;
}

void WeightReceiver::expect(Tensor& tensor, const TensorPart& part, const FrameHeader& answer) const {
  const bool is_weight = answer.kind == Kind::kValue && content_of(answer) != Content::kSum;
  if (is_weight && tensor.weight_replies->are_deltas() && is_held(tensor, part))
    tensor.held.resize(tensor.spec.elements());
}

void WeightReceiver::take(Tensor& tensor, std::size_t index, Frame& answer) const {
  const FrameHeader& header = answer.header;
  const Content content = content_of(header);
  if (header.kind != Kind::kValue || content == Content::kSum) return;
  TensorPart& state = tensor.parts[index];
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
  // What follows decodes floats, from wherever a weight came.
  if (content == Content::kWeightRounded) {
    Buffer floats = buffers_.take(state.part.count * sizeof(float));
    replies.codec().decode(answer.payload.bytes(),
                           {reinterpret_cast<float*>(floats.bytes().data()), state.part.count});
    answer.payload = std::move(floats);
    return;
  }
  if (!replies.are_deltas() || !is_held(tensor, state)) return;
  const auto held = std::span(tensor.held).subspan(state.part.offset, state.part.count);
  if (content == Content::kWeightDelta) {
    if (!state.holds_weight) throw compress::DecodeError("weight: a delta to one that is not held here");
    add_delta(replies.codec(), answer.payload.bytes(), held);
    // Borrowed: only the next answer for this part changes `held`, and by then this one is decoded.
    answer.payload = Buffer::borrow(std::as_bytes(held));
  } else {
    // If the payload is refused below, the next request must not ask for a delta.
    state.holds_weight = false;
    if (answer.payload.size_bytes() != held.size_bytes()) return;  // refused where it is decoded
    std::memcpy(held.data(), answer.payload.bytes().data(), held.size_bytes());
  }
  state.holds_weight = true;
}

}  // namespace gradwire::kvstore
