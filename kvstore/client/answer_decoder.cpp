#include "kvstore/client/answer_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "compress/float64_codec.h"
#include "kvstore/wire/codec_cache.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

namespace {

/// Copies what was received to the tensors that it is of.
void scatter(const Operation& operation) {
  std::size_t at = 0;
  for (const ArrayView tensor : operation.scatter) {
    copy_floats(operation.out.floats().subspan(at, tensor.size()), tensor);
    at += tensor.size();
  }
}

}  // namespace

void AnswerDecoder::decode(Tensor& tensor, std::size_t index, const Frame& answer) const {
  const FrameHeader& header = answer.header;
  const Part& part = tensor.parts[index].part;
  const Operation& operation = *tensor.current;
  expect_room(operation, part);
  const ArrayView out = operation.out.subspan(part.offset, part.count);
  if (out.is_float32()) {
    decode_floats(tensor, index, answer, static_cast<float>(operation.scale), out.floats());
    if (!operation.device) scatter(operation);  // of a device's landing it is lifted to them
    return;
  }
  // Straight into the caller's doubles. By way of floats the sum would lose the bits that it was kept in
  // float64 for.
  if (out.is_float64() && dtype_of(header) == Dtype::kFloat64) {
    const auto reply = header.kind == Kind::kValue ? compress::ReplyKind::kSame
                                                   : static_cast<compress::ReplyKind>(header.reply);
    if (header.kind == Kind::kReply && tensor.parts[index].request == Kind::kPush)
      tensor.expect_codec_of_push(header);
    return compress::Float64Codec().decode_reply(answer.payload.bytes(), reply, operation.scale,
                                                 out.doubles());
  }
  const auto memory = std::make_unique_for_overwrite<float[]>(part.count);
  const std::span<float> floats(memory.get(), part.count);
  if (!out.is_float64()) {
    decode_floats(tensor, index, answer, static_cast<float>(operation.scale), floats);
    return copy_floats(floats, out);
  }
  // Scaled below, in float64: a mean of large sums would otherwise be rounded twice.
  decode_floats(tensor, index, answer, 1, floats);
  std::ranges::transform(floats, out.doubles().begin(),
                         [scale = operation.scale](float value) { return value * scale; });
}

void AnswerDecoder::expect_room(const Operation& operation, const Part& part) {
  // On a device a bucket's answer has memory of the tensor's, and goes to the slots from there.
  if (operation.works_on_device() && !operation.scatter.empty()) return;
  if (operation.out.size() < part.offset + part.count)
    throw compress::DecodeError("answer: values for a push that asked for none");
}

std::uint32_t AnswerDecoder::ways_of(const FrameHeader& reply) const {
  const std::uint32_t absent = absent_of(reply.flags);
  // The number divides and sizes what follows, and comes from a peer.
  if (absent >= contributors_) {
    throw compress::DecodeError(
        fmt::format("reply: {} of {} workers are absent from it, expected fewer", absent, contributors_));
  }
  return contributors_ - absent;
}

void AnswerDecoder::decode_floats(Tensor& tensor, std::size_t index, const Frame& answer, float scale,
                                  std::span<float> out) const {
  const FrameHeader& header = answer.header;
  const Part& part = tensor.parts[index].part;
  const auto payload = answer.payload.bytes();
  const auto reply = static_cast<compress::ReplyKind>(header.reply);
  const std::uint32_t ways = ways_of(header);
  if (header.kind == Kind::kValue && dtype_of(header) == Dtype::kFloat64) {
    compress::Float64Codec().decode_reply_scaled(payload, 1, compress::ReplyKind::kSame, scale, out, {});
  } else if (header.kind == Kind::kValue) {
    // A value has no codec that would refuse another length.
    if (payload.size() != out.size_bytes())
      throw compress::DecodeError("value: payload length is not the key's");
    std::memcpy(out.data(), payload.data(), payload.size());
    if (scale != 1) {
      for (float& value : out) value *= scale;
    }
  } else if (tensor.parts[index].request == Kind::kPush) {
    const auto& codec = tensor.codec();
    tensor.expect_codec_of_push(header);
    // The answer to a push agrees the scales of the tensor's next round.
    const auto next = codec.agrees_scales() ? tensor.scales_of(part) : std::span<compress::UnitScale>();
    codec.decode_reply_scaled(payload, ways, reply, scale, out, next);
  } else {  // the answer to a round that may have had another codec; its scales are not ours to use
    const auto codec = codec_named_by(header);
    std::vector<compress::UnitScale> unused(codec->agrees_scales() ? compress::unit_count(part.count) : 0);
    codec->decode_reply_scaled(payload, ways, reply, scale, out, unused);
  }
}

}  // namespace gradwire::kvstore
