#include "kvstore/server/mirror.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kvstore/wire/answer.h"

namespace gradwire::kvstore {

using transport::Frame;
using transport::Node;
using transport::Role;

namespace {

constexpr unsigned kPlaceBits = 48;
constexpr unsigned kMostDoublings = 4;
constexpr std::uint64_t kPlaceMask = (std::uint64_t{1} << kPlaceBits) - 1;

}  // namespace

std::uint64_t pack(const MirrorNumber& number) {
  return (number.place & kPlaceMask) | std::uint64_t{number.log} << kPlaceBits |
         std::uint64_t{number.logs} << (kPlaceBits + 8);
}

MirrorNumber unpack(std::uint64_t number) {
  return {number & kPlaceMask, static_cast<std::uint8_t>(number >> kPlaceBits),
          static_cast<std::uint8_t>(number >> (kPlaceBits + 8))};
}

Frame MirrorLog::forward(std::uint32_t worker, const Frame& request, Clock::time_point now) {
  if (unacknowledged_.empty()) progressed_ = sent_again_ = now;
  Frame numbered = share(request);
  numbered.header.on_behalf = Node{Role::kWorker, worker};
  numbered.header.number = pack({next_++, log_, logs_});
  unacknowledged_.push_back(share(numbered));
  return numbered;
}

void MirrorLog::hold(std::vector<Answer> answers) {
  for (auto& answer : answers) held_.emplace_back(next_, std::move(answer));
}

std::vector<Frame> MirrorLog::acknowledge(std::uint64_t next, Clock::time_point now) {
  if (next < acknowledged_ || next > next_) return {};  // late, or of nothing that was sent
  if (next == acknowledged_) {  // once for each: what was on its way meanwhile says it many times
    if (unacknowledged_.empty() || std::exchange(asked_again_, next) == next) return {};
    return all_again(now);
  }
  unacknowledged_.erase(unacknowledged_.begin(),
                        unacknowledged_.begin() + static_cast<std::ptrdiff_t>(next - acknowledged_));
  acknowledged_ = next;
  progressed_ = sent_again_ = now;
  times_in_vain_ = 0;
  return {};
}

void MirrorLog::forgo() {
  acknowledged_ = next_;
  unacknowledged_.clear();
}

std::vector<Answer> MirrorLog::release() {
  const auto end = std::ranges::find_if(held_, [this](const auto& row) { return row.first > acknowledged_; });
  std::vector<Answer> answers;
  std::transform(std::make_move_iterator(held_.begin()), std::make_move_iterator(end),
                 std::back_inserter(answers), [](auto row) { return std::move(row.second); });
  held_.erase(held_.begin(), end);
  return answers;
}

std::vector<Frame> MirrorLog::overdue(Clock::time_point now, std::chrono::milliseconds patience) {
  if (unacknowledged_.empty() || now - sent_again_ < patience * (1U << times_in_vain_)) return {};
  times_in_vain_ = std::min(times_in_vain_ + 1, kMostDoublings);
  return all_again(now);
}

std::vector<Frame> MirrorLog::all_again(Clock::time_point now) {
  sent_again_ = now;
  std::vector<Frame> again;
  for (const Frame& frame : unacknowledged_) again.push_back(share(frame));
  return again;
}

MirrorLog::Clock::duration MirrorLog::waited(Clock::time_point now) const {
  return unacknowledged_.empty() ? Clock::duration(0) : now - progressed_;
}

bool MirrorIntake::take(Frame& request) {
  transport::FrameHeader& header = request.header;
  const bool is_workers = header.on_behalf && header.on_behalf->role == Role::kWorker;
  if (!is_workers || unpack(header.number).place != next_ || !request.payload.is_intact()) return false;
  header.sender = *header.on_behalf;
  header.on_behalf.reset();
  header.number = 0;
  ++next_;
  return true;
}

Frame mirrored(const MirrorNumber& next) {
  Frame frame;
  frame.header.kind = transport::Kind::kMirrored;
  frame.header.number = pack(next);
  return frame;
}

}  // namespace gradwire::kvstore
