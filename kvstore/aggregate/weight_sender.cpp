#include "kvstore/aggregate/weight_sender.h"

#include <algorithm>
#include <utility>

#include "kvstore/release_memory.h"
#include "kvstore/wire/answer.h"

namespace gradwire::kvstore {

using transport::Buffer;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

void WeightSender::set_replies(std::string_view text, Partitions& partitions) {
  WeightReplies replies(text);
  if (replies.text() == replies_.text()) return;
  for (auto& [id, partition] : partitions) {
    if (replies_.are_deltas()) release_memory(partition.held_by_workers);  // else they are a checkpoint's
    partition.sent_to_each.clear();
  }
  replies_ = std::move(replies);
}

Frame WeightSender::first_value(const Partition& partition, const FrameHeader& request) {
  Frame frame = whole(std::as_bytes(std::span(partition.first64)), request);
  frame.header.dtype = static_cast<std::uint8_t>(Dtype::kFloat64);
  return frame;
}

Frame WeightSender::whole(std::span<const std::byte> weight, const FrameHeader& request) {
  Buffer out = pool_.take(weight.size());
  std::ranges::copy(weight, out.bytes().begin());
  Frame frame = answer_to(request, Kind::kValue, std::move(out));
  frame.header.content = static_cast<std::uint8_t>(Content::kWeight);
  return frame;
}

Frame WeightSender::whole(std::span<const float> weight, const FrameHeader& request) {
  return whole(std::as_bytes(weight), request);
}

Frame WeightSender::encoded(Content content, Buffer payload, const FrameHeader& request) const {
  payload.seal();
  Frame frame = answer_to(request, Kind::kValue, std::move(payload));
  frame.header.content = static_cast<std::uint8_t>(content);
  frame.header.codec = static_cast<std::uint8_t>(replies_.codec().wire_id());
  frame.header.codec_parameters = replies_.codec().wire_parameters();
  return frame;
}

Frame WeightSender::weight(const Partition& partition, const FrameHeader& request) {
  if (replies_.form() == WeightReplies::Form::kRounded) {
    if (auto rounded = round_weight(replies_.codec(), partition.value, pool_))
      return encoded(Content::kWeightRounded, std::move(*rounded), request);
    // An element is too large for 16 bits. The others have the bits that rounding would have given them, so
    // that what is in a partition does not change them.
    return whole(round_what_fits(replies_.codec(), partition.value), request);
  }
  // As workers hold it, so that all of them pull the same. Content 1 asks for the server's own.
  const bool shows_held =
      replies_.are_deltas() && !partition.held_by_workers.empty() && content_of(request) != Content::kWeight;
  return whole(shows_held ? partition.held_by_workers : partition.value, request);
}

/// A difference that makes the weight of what the worker holds; `held` is then that but for what the codec
/// leaves out.
Frame WeightSender::encode_weight(const Partition& partition, std::vector<float>& held, std::uint32_t worker,
                                  const FrameHeader& request) {
  // A codec that draws random numbers draws others in each round, and for each worker that has deltas of its
  // own.
  const compress::Position position{static_cast<std::uint32_t>(request.key), worker, partition.next_step,
                                    request.offset};
  if (!held.empty()) {
    if (auto delta = encode_delta(replies_.codec(), partition.value, position, held, pool_))
      return encoded(Content::kWeightDelta, std::move(*delta), request);
  } else {
    // Nobody holds any weight yet: the first one goes whole, and deltas begin from it.
    held = partition.value;
  }
  // Also where a difference was not finite: encode_delta() has then made `held` what workers are to hold.
  return whole(held, request);
}

Frame WeightSender::new_weight(Partition& partition, const FrameHeader& request) {
  if (replies_.are_deltas()) return encode_weight(partition, partition.held_by_workers, workers_, request);
  release_memory(partition.held_by_workers);  // a checkpoint's, of rounds before
  return weight(partition, request);
}

Frame WeightSender::async_weight(std::uint32_t worker, Partition& partition, PushClocks& clocks,
                                 const FrameHeader& request, Delivery delivery) {
  if (!replies_.are_deltas()) {
    clocks.show(worker);
    return weight(partition, request);
  }
  SentWeight& held = partition.sent_to_each[worker];
  if (request.kind == Kind::kPull) {
    // Steps of a worker's pulls descend, so this one was here before, or is late.
    if (request.step >= held.last_pull) delivery = Delivery::kRepeat;
    held.last_pull = std::min(held.last_pull, request.step);
  }
  if (delivery == Delivery::kRepeat && !held.weight.empty()) return whole(held.weight, request);
  // Not for a repeated answer: it shows the worker no newer weight, so staleness counts from the first one.
  clocks.show(worker);
  // The worker says that it does not hold what was sent last.
  if (content_of(request) != Content::kWeightDelta) held.weight.clear();
  return encode_weight(partition, held.weight, worker, request);
}

void WeightSender::forget_sent(Partitions& partitions) {
  for (auto& [id, partition] : partitions) {
    for (auto& [worker, held] : partition.sent_to_each) held.weight.clear();
  }
}

Frame WeightSender::last_answer(const Partition& partition, Content held, bool is_sealed) {
  const Frame& answer = *partition.answer;
  // Made of `held`, and not of the weight: both ways leave a worker with the same floats.
  if (content_of(answer.header) != Content::kWeightDelta || held == Content::kWeightDelta)
    return share(answer);
  Frame weight = whole(partition.held_by_workers, answer.header);
  weight.header.flags = answer.header.flags;
  if (is_sealed) weight.payload.seal();
  return weight;
}

}  // namespace gradwire::kvstore
