#include "kvstore/aggregate/async_rounds.h"

#include <algorithm>
#include <utility>

namespace gradwire::kvstore {

using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

PushClocks& AsyncRounds::clocks_of(Partition& partition) const {
  return workers_.clocks_of(partition.clocks, partition.next_step);
}

void AsyncRounds::push(std::uint32_t worker, Partition& partition, Frame frame,
                       std::vector<Answer>& answers) {
  const FrameHeader header = frame.header;
  PushClocks& clocks = clocks_of(partition);
  gate_.require_next(worker, header, clocks);
  const std::uint64_t next_step = clocks.next_step_of(worker);
  if (header.step < next_step) {  // repeated: the answer was lost, is on its way, or waits
    // A held push is answered when the others have caught up. An older one was answered before its worker
    // pushed again.
    const bool is_last = header.step + 1 == next_step && !partition.held_pushes.contains(worker);
    if (is_last) answers.push_back({worker, answer(worker, partition, header, Delivery::kRepeat)});
    return;
  }
  sums_.note(RoundMoment::kTaken, header);
  // Before the push is counted: if it cannot be applied, it is refused, and must not count as one that went
  // in.
  sums_.apply(partition, std::move(frame));
  clocks.count(worker, header.step);
  // For checkpoints, which save the step of the worker that is furthest.
  partition.next_step = std::max(partition.next_step, header.step + 1);
  // Held first also where nobody is behind. This push may release others, in the same pass.
  partition.held_pushes.emplace(worker, header);
  answer_held(partition, answers);
}

Frame AsyncRounds::pull(std::uint32_t worker, Partition& partition, const FrameHeader& request) {
  return weights_.async_weight(worker, partition, clocks_of(partition), request, Delivery::kFirst);
}

void AsyncRounds::answer_held(std::vector<Answer>& answers) {
  for (auto& [id, partition] : partitions_) {
    if (!partition.held_pushes.empty()) answer_held(partition, answers);
  }
}

void AsyncRounds::answer_held(Partition& partition, std::vector<Answer>& answers) {
  std::erase_if(partition.held_pushes, [&](const auto& row) {
    const auto& [worker, push] = row;
    if (!workers_.awaited_by(worker, clocks_of(partition)).empty()) return false;
    answers.push_back({worker, answer(worker, partition, push, Delivery::kFirst)});
    sums_.note(RoundMoment::kAnswerReady, push);
    return true;
  });
}

Frame AsyncRounds::answer(std::uint32_t worker, Partition& partition, const FrameHeader& push,
                          Delivery delivery) {
  PushClocks& clocks = clocks_of(partition);
  const bool wants_weight = content_of(push) != Content::kSum;
  Frame frame = wants_weight ? weights_.async_weight(worker, partition, clocks, push, delivery)
                             : answer_to(push, Kind::kAck);
  if (wants_weight && seals(sealing_, codecs_.of(push))) frame.payload.seal();
  // Of this push alone: no other worker has a part in the round.
  frame.header.flags = push.flags & transport::kFlagNonfinite;
  set_staleness(frame.header, clocks.staleness_of(worker));
  return frame;
}

void AsyncRounds::probe(std::uint32_t worker, Partition& partition, const FrameHeader& request,
                        std::vector<Answer>& answers) {
  const PushClocks& clocks = clocks_of(partition);
  const std::uint64_t next_step = clocks.next_step_of(worker);
  if (request.step >= next_step) {
    answers.push_back({worker, answer_to(request, Kind::kMissing)});
  } else if (partition.held_pushes.contains(worker)) {
    answers.push_back({worker, held(request, workers_.awaited_by(worker, clocks))});
  } else if (request.step + 1 == next_step) {
    answers.push_back({worker, answer(worker, partition, request, Delivery::kRepeat)});
  }
}

void AsyncRounds::forget_worker(std::uint32_t worker) {
  for (auto& [id, partition] : partitions_) {
    partition.held_pushes.erase(worker);
    // A copy of the weight for each worker is what deltas cost, and this one needs none any more.
    partition.sent_to_each.erase(worker);
  }
}

}  // namespace gradwire::kvstore
