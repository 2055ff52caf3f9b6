#include "kvstore/server/server_trace.h"

namespace gradwire::kvstore {

using Moment = Aggregator::Moment;

void ServerTrace::on(Moment moment, const transport::FrameHeader& header) {
  if (!tracer_.is_on()) {
    all_here_ = summed_ = {};
    return;
  }
  const auto now = TraceClock::now();
  const std::uint64_t bytes = header.count * sizeof(float);
  switch (moment) {
    case Moment::kTaken:
      return note(Stage::kServerReceive, header, arrived_, now, bytes, worker_);
    case Moment::kAllHere:
      all_here_ = now;
      summed_ = {};  // and stays so where the sum fails
      return;
    case Moment::kSummed:
      summed_ = now;
      return note(Stage::kSum, header, all_here_, now, bytes, kNoPeer);
    case Moment::kAnswerReady:
      return note(Stage::kReplyEncode, header, summed_, now, bytes, kNoPeer);
  }
}

void ServerTrace::note(Stage stage, const transport::FrameHeader& header, TraceClock::time_point begin,
                       TraceClock::time_point end, std::uint64_t bytes, std::uint32_t peer) const {
  Span span;
  span.begin = begin;
  span.end = end;
  span.key = header.key;
  span.offset = header.offset;
  span.bytes = bytes;
  span.step = header.step;
  span.priority = header.priority;
  span.peer = peer;
  span.stage = stage;
  tracer_.add(span);
}

}  // namespace gradwire::kvstore
