// Aggregator: weights as answers. Whole, rounded, or as what changes the weight that a worker has into the
// new one.
#include <algorithm>
#include <cstring>
#include <utility>

#include "compress/float64_codec.h"
#include "kvstore/aggregate/aggregator.h"
#include "kvstore/wire/answer.h"
#include "kvstore/wire/shortened.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

/// Where a job has summed so far, what a pull brings is the last sum, to the bit, and so what an optimizer
/// goes on from. Not so of several tensors in one: where servers have an optimizer, each tensor goes alone.
void Aggregator::begin_with_sum(Partition& partition) {
  if (!partition.value.empty() || !partition.answer) return;
  Frame sum = share(*partition.answer);
  const FrameHeader& header = sum.header;
  if (content_of(header) != Content::kSum) return;
  if (header.kind == Kind::kValue) {
    partition.value.resize(partition.count);
    const auto payload = std::as_const(sum.payload).bytes();
    if (dtype_of(header) == Dtype::kFloat64) {
      compress::Float64Codec().decode_reply(payload, 1, compress::ReplyKind::kSame, partition.value, {});
    } else {
      std::memcpy(partition.value.data(), payload.data(), payload.size());
    }
  }
  if (header.kind != Kind::kReply) return;
  if ((header.flags & transport::kFlagSegments) != 0) return;
  restore(sum, pool_);
  const compress::Codec& codec = codecs_.of(header);
  std::vector<float> value(partition.count);
  std::vector<compress::UnitScale> unused(codec.agrees_scales() ? compress::unit_count(value.size()) : 0);
  codec.decode_reply(std::as_const(sum.payload).bytes(), contributors_.size() - absent_of(header.flags),
                     static_cast<compress::ReplyKind>(header.reply), value, unused);
  partition.value = std::move(value);
}

/// The same replies again change nothing: workers keep what they have.
void Aggregator::set_weight_replies(std::string_view text) {
  WeightReplies replies(text);
  if (replies.text() == weight_replies_.text()) return;
  for (auto& [id, partition] : partitions_) {
    if (weight_replies_.are_deltas()) partition.told = {};  // else they are a checkpoint's
    partition.told_each.clear();
  }
  weight_replies_ = std::move(replies);
}

Frame Aggregator::first_value(const Partition& partition, const FrameHeader& request) {
  const auto bytes = std::as_bytes(std::span(partition.first64));
  Buffer out = pool_.take(bytes.size());
  out.truncate(bytes.size());
  std::ranges::copy(bytes, out.bytes().begin());
  Frame frame = answer_to(request, Kind::kValue, std::move(out));
  frame.header.content = static_cast<std::uint8_t>(Content::kWeight);
  frame.header.dtype = static_cast<std::uint8_t>(Dtype::kFloat64);
  return frame;
}

Frame Aggregator::whole_weight(std::span<const float> weight, const FrameHeader& request) {
  Buffer out = pool_.take(weight.size_bytes());
  out.truncate(weight.size_bytes());
  std::memcpy(out.bytes().data(), weight.data(), out.size_bytes());
  Frame frame = answer_to(request, Kind::kValue, std::move(out));
  frame.header.content = static_cast<std::uint8_t>(Content::kWeight);
  return frame;
}

Frame Aggregator::encoded_weight(Content content, Buffer payload, const FrameHeader& request) const {
  payload.seal();
  Frame frame = answer_to(request, Kind::kValue, std::move(payload));
  frame.header.content = static_cast<std::uint8_t>(content);
  frame.header.codec = static_cast<std::uint8_t>(weight_replies_.codec().wire_id());
  frame.header.codec_parameters = weight_replies_.codec().wire_parameters();
  return frame;
}

/// The weight as workers have it after the last round, or would have it; with content 1 where they get deltas
/// as it is.
Frame Aggregator::weight(const Partition& partition, const FrameHeader& request) {
  if (weight_replies_.form() == WeightReplies::Form::kRounded) {
    if (auto rounded = round_weight(weight_replies_.codec(), partition.value, pool_))
      return encoded_weight(Content::kWeightRounded, std::move(*rounded), request);
    return whole_weight(round_what_fits(weight_replies_.codec(), partition.value), request);
  }
  const bool is_told =
      weight_replies_.are_deltas() && !partition.told.empty() && content_of(request) != Content::kWeight;
  return whole_weight(is_told ? partition.told : partition.value, request);
}

/// What makes the weight of what was told, which it then is but for what the codec leaves out.
Frame Aggregator::tell_weight(const Partition& partition, std::vector<float>& told, std::uint32_t worker,
                              const FrameHeader& request) {
  const compress::Position position{static_cast<std::uint32_t>(request.key), worker, partition.next_step,
                                    request.offset};
  if (!told.empty()) {
    if (auto delta = encode_delta(weight_replies_.codec(), partition.value, position, told, pool_))
      return encoded_weight(Content::kWeightDelta, std::move(*delta), request);
  } else {
    told = partition.value;
  }
  return whole_weight(told, request);
}

/// What all workers that have what was told make of it the weight of the round that has just been summed.
Frame Aggregator::new_weight(Partition& partition, const FrameHeader& request) {
  if (weight_replies_.are_deltas()) return tell_weight(partition, partition.told, workers_, request);
  partition.told = {};  // a checkpoint's, of rounds before
  return weight(partition, request);
}

/// The weight as it is now. Where workers get deltas, a request that comes again is told what it was told
/// before: the next delta is made to that, whichever answer has reached the worker.
Frame Aggregator::weight_at_once(std::uint32_t worker, Partition& partition, const FrameHeader& request,
                                 Telling telling) {
  if (!weight_replies_.are_deltas()) {
    clocks_of(partition).show(worker);
    return weight(partition, request);
  }
  Told& told = partition.told_each[worker];
  if (request.kind == Kind::kPull) {
    if (request.step >= told.last_pull) telling = Telling::kAgain;
    told.last_pull = std::min(told.last_pull, request.step);
  }
  if (telling == Telling::kAgain && !told.weight.empty()) return whole_weight(told.weight, request);
  clocks_of(partition).show(worker);
  if (content_of(request) != Content::kWeightDelta) told.weight.clear();
  return tell_weight(partition, told.weight, worker, request);
}

void Aggregator::forget_told() {
  for (auto& [id, partition] : partitions_) {
    for (auto& [worker, told] : partition.told_each) told.weight.clear();
  }
}

/// The last answer, for a worker that has, or has not, the weight that a delta changes.
Frame Aggregator::last_answer(const Partition& partition, Content held) {
  const Frame& answer = *partition.answer;
  if (content_of(answer.header) != Content::kWeightDelta || held == Content::kWeightDelta)
    return share(answer);
  Frame whole = whole_weight(partition.told, answer.header);
  whole.header.flags = answer.header.flags;
  seal(whole, answer.header);
  return whole;
}

}  // namespace gradwire::kvstore
