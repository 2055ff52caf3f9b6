// Aggregator where every push is a round of its own: it goes into the weight when it arrives, and is answered
// as the workers' clocks allow.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kvstore/aggregate/aggregator.h"
#include "kvstore/wire/answer.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

PushClocks& Aggregator::clocks_of(Partition& partition) const {
  return at_once_.clocks_of(partition.clocks, partition.next_step);
}

void Aggregator::on_meet(std::uint32_t worker, const FrameHeader& header, std::vector<Answer>& answers) {
  at_once_.meet(worker);
  answers.push_back({worker, answer_to(header, Kind::kAck)});
  for (auto& [id, partition] : partitions_) {
    if (!partition.early.empty()) answer_the_early(partition, answers);
  }
}

void Aggregator::apply_at_once(std::uint32_t worker, Partition& partition, Frame frame,
                               std::vector<Answer>& answers) {
  const FrameHeader header = frame.header;
  PushClocks& clocks = clocks_of(partition);
  const std::uint64_t next_step = clocks.next_step_of(worker);
  if (header.step < next_step) {  // repeated: the answer was lost, is on its way, or waits
    const bool is_last = header.step + 1 == next_step && !partition.early.contains(worker);
    if (is_last) answers.push_back({worker, answer_at_once(worker, partition, header, Telling::kAgain)});
    return;
  }
  if (header.step > next_step && clocks.has_pushed(worker)) {
    throw Refused{Refusal::kFinal, fmt::format("push of key {} is for step {} of worker {}, expected step {}",
                                               header.key, header.step, worker, next_step)};
  }
  tell(Moment::kTaken, header);
  tell(Moment::kAllHere, header);
  Round round;
  round.first = header;
  round.payloads.emplace_back(std::move(frame.payload));
  const Contributions contributions(round.payloads);
  with_codec(header, contributions.front(),
             [&](const compress::Codec& codec) { update(partition, round, codec, contributions); });
  clocks.count(worker, header.step);
  partition.next_step = std::max(partition.next_step, header.step + 1);
  partition.early.emplace(worker, header);
  answer_the_early(partition, answers);
}

/// Answers those who need not wait any more, with the weight as it is now.
void Aggregator::answer_the_early(Partition& partition, std::vector<Answer>& answers) {
  std::erase_if(partition.early, [&](const auto& row) {
    const auto& [worker, push] = row;
    if (!at_once_.awaited_by(worker, clocks_of(partition)).empty()) return false;
    answers.push_back({worker, answer_at_once(worker, partition, push, Telling::kFirst)});
    tell(Moment::kAnswerReady, push);
    return true;
  });
}

Frame Aggregator::answer_at_once(std::uint32_t worker, Partition& partition, const FrameHeader& request,
                                 Telling telling) {
  const bool wants_weight = content_of(request) != Content::kSum;
  Frame frame =
      wants_weight ? weight_at_once(worker, partition, request, telling) : answer_to(request, Kind::kAck);
  if (wants_weight) seal(frame, request);
  frame.header.flags = request.flags & transport::kFlagNonfinite;
  set_staleness(frame.header, clocks_of(partition).staleness_of(worker));
  return frame;
}

void Aggregator::probe_at_once(std::uint32_t worker, Partition& partition, const FrameHeader& header,
                               std::vector<Answer>& answers) {
  const PushClocks& clocks = clocks_of(partition);
  const std::uint64_t next_step = clocks.next_step_of(worker);
  if (header.step >= next_step) {
    answers.push_back({worker, answer_to(header, Kind::kMissing)});
  } else if (partition.early.contains(worker)) {
    answers.push_back({worker, held(header, at_once_.awaited_by(worker, clocks_of(partition)))});
  } else if (header.step + 1 == next_step) {
    answers.push_back({worker, answer_at_once(worker, partition, header, Telling::kAgain)});
  }
}

}  // namespace gradwire::kvstore
