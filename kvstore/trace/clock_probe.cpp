#include "kvstore/trace/clock_probe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

namespace gradwire::kvstore {

using std::chrono::nanoseconds;
using transport::Frame;
using transport::FrameHeader;
using transport::Kind;

namespace {

/// Questions to each server. The shortest of so many round trips has met no queue, but on a machine that is
/// full.
constexpr int kQuestions = 16;

// The time stands in two of the header's free fields, low half first: such a frame has no payload.
void store_time(FrameHeader& header, TraceClock::time_point time) {
  const auto ns = std::bit_cast<std::uint64_t>(std::int64_t{nanoseconds(time.time_since_epoch()).count()});
  header.codec_parameters[0] = static_cast<std::uint32_t>(ns);
  header.codec_parameters[1] = static_cast<std::uint32_t>(ns >> 32);
}

TraceClock::time_point load_time(const FrameHeader& header) {
  const std::uint64_t ns = header.codec_parameters[0] | std::uint64_t{header.codec_parameters[1]} << 32;
  return TraceClock::time_point(nanoseconds(std::bit_cast<std::int64_t>(ns)));
}

/// Whether the difference is a number: a time may be any 64 bits that a peer has sent.
bool can_subtract(TraceClock::time_point a, TraceClock::time_point b) {
  constexpr auto kFar = TraceClock::duration::max() / 2;
  return std::ranges::all_of(std::array{a.time_since_epoch(), b.time_since_epoch()},
                             [&](auto since) { return -kFar < since && since < kFar; });
}

}  // namespace

Frame tell_time(const FrameHeader& asked, TraceClock::time_point now) {
  Frame frame;
  frame.header.kind = Kind::kTime;
  frame.header.key = asked.key;
  store_time(frame.header, now);
  return frame;
}

void ClockProbe::read(Trace& trace, std::chrono::milliseconds timeout) {
  const auto deadline = TraceClock::now() + timeout;
  try {
    for (std::uint32_t server = 0; server < messenger_.world().servers; ++server) {
      if (const auto reading = read_server(server, trace, deadline)) trace.add_reading(*reading);
    }
  } catch (const transport::TransportError&) {  // NOLINT(bugprone-empty-catch): who uses the job hears why
  }
}

std::optional<ClockReading> ClockProbe::read_server(std::uint32_t server, const Trace& trace,
                                                    TraceClock::time_point deadline) {
  std::optional<ClockReading> best;
  for (int question = 0; question < kQuestions; ++question) {
    const auto sent = TraceClock::now();
    const auto answer = ask(server, deadline);
    // The server has left, or the time is over. What was measured so far counts.
    if (!answer) break;
    const nanoseconds round_trip = answer->here - sent;
    // The error of a reading is at most half its round trip.
    if (best && best->round_trip <= round_trip) continue;
    const auto middle = trace.with_offset(sent + round_trip / 2);
    if (!can_subtract(answer->there, middle)) continue;  // no clock shows that
    best = ClockReading{server, answer->there - middle, round_trip, middle};
  }
  return best;
}

std::optional<ClockProbe::Answer> ClockProbe::ask(std::uint32_t server, TraceClock::time_point deadline) {
  Frame question;
  question.header.kind = Kind::kClock;
  {
    const std::lock_guard lock(mutex_);
    // Numbered, so that a late answer to an earlier question is not taken for this one's.
    question.header.key = ++asked_;
    answer_.reset();
  }
  std::vector<Frame> frames;
  frames.push_back(std::move(question));
  messenger_.send({transport::Role::kServer, server}, std::move(frames));
  // A server that has left says nothing: the rest of the time is for the others.
  const auto patience = std::min(deadline, TraceClock::now() + std::chrono::milliseconds(500));
  std::unique_lock lock(mutex_);
  answered_.wait_until(lock, patience, [this] { return answer_.has_value(); });
  return std::exchange(answer_, std::nullopt);
}

void ClockProbe::take(const FrameHeader& header) {
  // Before the lock, so that waiting for it does not count as distance.
  const auto here = TraceClock::now();
  {
    const std::lock_guard lock(mutex_);
    if (header.key != asked_) return;  // late: nobody waits for it any more
    answer_ = Answer{load_time(header), here};
  }
  answered_.notify_all();
}

}  // namespace gradwire::kvstore
