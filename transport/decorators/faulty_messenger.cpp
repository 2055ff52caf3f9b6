#include "transport/decorators/faulty_messenger.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "transport/thread_name.h"

namespace gradwire::transport {
namespace {

/// A frame that nothing overtakes goes after this.
constexpr std::chrono::milliseconds kLongestOvertaking{20};

/// SplitMix64's output function (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
constexpr std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

std::uint64_t number_of(Node node) { return static_cast<std::uint64_t>(node.role) << 32 | node.rank; }

/// One frame's fate. Each fault has a draw of its own, so that adding one changes nothing of the others.
class Dice {
 public:
  Dice(std::uint64_t seed, Node from, Node to, std::uint64_t frame) {
    state_ = mixed(seed);
    for (const std::uint64_t part : {number_of(from), number_of(to), frame})
      state_ = mixed(state_ + part + 1);
  }
  /// A number below 2^64 of the n-th draw.
  std::uint64_t draw(unsigned n) const { return mixed(state_ + (n + 1) * 0x9E3779B97F4A7C15U); }
  // The upper 53 bits are a double in [0, 1) exactly, so a share of 0 hits none and a share of 1 all.
  bool hits(unsigned n, double share) const { return static_cast<double>(draw(n) >> 11) * 0x1p-53 < share; }

 private:
  std::uint64_t state_;
};

std::optional<FaultEvent> event_of(Kind kind) {
  switch (kind) {
    case Kind::kInit:
    case Kind::kRowInit:
      return FaultEvent::kInit;
    case Kind::kPush:
    case Kind::kRowPush:
      return FaultEvent::kPush;
    case Kind::kReply:
    case Kind::kValue:
    case Kind::kRowReply:
      return FaultEvent::kReply;
    case Kind::kPull:
    case Kind::kRowPull:
      return FaultEvent::kPull;
    case Kind::kReadState:
    case Kind::kWriteState:
    case Kind::kRowReadState:
    case Kind::kRowWriteState:
      return FaultEvent::kCheckpoint;
    case Kind::kPost:
    case Kind::kFetch:
    case Kind::kBlob:
    case Kind::kReceipt:
    case Kind::kDelivered:
      return FaultEvent::kBlob;
    default:
      // Answers such as kHeld come as often as workers ask, and a count of them would differ from run to run.
      return std::nullopt;
  }
}

bool any_matches(const std::vector<NodePattern>& patterns, Node node) {
  return std::ranges::any_of(patterns, [node](const NodePattern& one) { return one.matches(node); });
}

}  // namespace

FaultyMessenger::FaultyMessenger(std::unique_ptr<Messenger> messenger, std::shared_ptr<Faults> faults,
                                 std::optional<std::uint32_t> known_rank)
    : ForwardingMessenger(std::move(messenger)),
      faults_(std::move(faults)),
      self_(ForwardingMessenger::self()),
      known_{self_.role, known_rank.value_or(self_.rank)},
      local_peer_(ForwardingMessenger::local_peer()) {
  // Reported at the end: a kill that a node of this process never came to is named (Faults::counts).
  faults_->host(known_);
  for (const FaultSpec::Slow& slow : faults_->spec().slow) {
    if (slow.node.matches(known_)) slow_ = &slow;
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

FaultyMessenger::~FaultyMessenger() {
  // The waits of run() take the stop token. thread_ is the last member, so it is joined before what it uses.
  thread_.request_stop();
  changed_.notify_all();
  // The messenger below leaves in its own destructor, and its goodbye must come behind these frames.
  send_held_back();
}

/// What a server passes on to its mirror is counted at neither: it is no push to them, and may go again.
void FaultyMessenger::saw(const Frame& frame) {
  if (frame.header.on_behalf && frame.header.on_behalf->role == Role::kWorker) return;
  if (const auto event = event_of(frame.header.kind)) faults_->saw(known_, *event);
}

void FaultyMessenger::on_frames(Node from, std::vector<Frame> frames) {
  // Before the Sink has them: a process that kills itself at a push has not taken it.
  for (const Frame& frame : frames) saw(frame);
  ForwardingMessenger::on_frames(from, std::move(frames));
}

std::vector<std::string> FaultyMessenger::exchange(std::string_view name, std::string_view blob,
                                                   std::chrono::milliseconds timeout) {
  faults_->saw(known_, FaultEvent::kBarrier);
  return ForwardingMessenger::exchange(name, blob, timeout);
}

/// Order between two nodes is the lock's, as without faults it is that of the calls.
void FaultyMessenger::send(Node to, std::vector<Frame> frames) {
  for (const Frame& frame : frames) saw(frame);
  // Nothing is lost in a process's own memory, so a fault there would be one that no job can have.
  if (to == local_peer_) return ForwardingMessenger::send(to, std::move(frames));
  const std::lock_guard lock(mutex_);
  Ways ways;
  for (Frame& frame : frames) disturb(to, std::move(frame), ways);
  if (!ways.now.empty()) {
    hand_on(to, std::move(ways.now));
    // Frames that were reordered before go behind these, which is what overtakes them.
    let_overtaken_go(to);
  }
  // As a message of its own: within one message, a duplicate would arrive at the same moment.
  if (!ways.again.empty()) hand_on(to, std::move(ways.again));
  if (ways.overtaken.empty()) return;
  auto& waiting = overtaken_[to];
  for (Frame& frame : ways.overtaken) waiting.push_back(std::move(frame));
  // No frames, as a mark: if nothing is sent to that node until then, what waits goes anyway.
  hold(Clock::now() + kLongestOvertaking, {to, {}});
}

void FaultyMessenger::disturb(Node to, Frame frame, Ways& ways) {
  // What does not go at once goes as a copy: its sender's memory may be used again once an answer is there.
  const FaultSpec& spec = faults_->spec();
  // Numbered per receiver: threads that send to different nodes do not change each other's draws.
  const Dice dice(spec.seed, self_, to, sent_[to]++);
  const auto now = Clock::now();
  faults_->count_frame();
  // Before the draws: a cut is a matter of time, and a frame that it loses has no other fault.
  if (is_cut_off(to, now)) return faults_->count(Fault::kPartitioned);
  if (dice.hits(0, spec.drop)) return faults_->count(Fault::kDropped);
  if (dice.hits(1, spec.corrupt)) {
    faults_->count(Fault::kCorrupted);
    // Where there is no payload the header is hit, whose checksum every receiver compares: the frame is gone.
    if (frame.payload.size_bytes() == 0) return;
    // As on a wire with checksums, whether or not this link has them.
    if (!frame.payload.checksum()) frame.payload.seal();
    frame.payload = frame.payload.copy();
    // After the copy: the payload may be shared with frames to other nodes, which must arrive whole.
    const std::uint64_t place = dice.draw(2);
    frame.payload.bytes()[(place >> 3) % frame.payload.size_bytes()] ^= std::byte{1} << (place & 7);
  }
  if (dice.hits(3, spec.duplicate)) {
    faults_->count(Fault::kDuplicated);
    ways.again.push_back({frame.header, frame.payload.copy()});
  }
  if (dice.hits(4, spec.delayed)) {
    faults_->count(Fault::kDelayed);
    frame.payload = frame.payload.copy();
    Held held{to, {}};
    held.frames.push_back(std::move(frame));
    return hold(now + spec.delay, std::move(held));
  }
  if (dice.hits(5, spec.reorder)) {
    faults_->count(Fault::kReordered);
    frame.payload = frame.payload.copy();
    return ways.overtaken.push_back(std::move(frame));
  }
  ways.now.push_back(std::move(frame));
}

bool FaultyMessenger::is_cut_off(Node to, Clock::time_point now) const {
  return std::ranges::any_of(faults_->spec().partitions, [&](const FaultSpec::Partition& cut) {
    const auto since = now - joined_;
    if (since < cut.begin || since >= cut.begin + cut.length) return false;
    return (any_matches(cut.one, self_) && any_matches(cut.other, to)) ||
           (any_matches(cut.other, self_) && any_matches(cut.one, to));
  });
}

/// Frames that go now; of a slow node when its line has written what it had before.
void FaultyMessenger::hand_on(Node to, std::vector<Frame> frames) {
  // Null after leave(), too: a node that leaves must get its last frames out within its timeout.
  if (slow_ == nullptr) return ForwardingMessenger::send(to, std::move(frames));
  double bytes = 0;
  for (const Frame& frame : frames) {
    faults_->count(Fault::kSlowed);
    bytes += static_cast<double>(kHeaderBytes + frame.payload.size_bytes());
  }
  const auto writing = std::chrono::duration<double>(bytes / slow_->bytes_per_second);
  // One line for all receivers, as a network card is. A line that was idle begins now.
  line_free_ = std::max(line_free_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(writing);
  hold(line_free_ + slow_->latency, {to, std::move(frames)});
}

void FaultyMessenger::let_overtaken_go(Node to) {
  const auto found = overtaken_.find(to);
  if (found == overtaken_.end()) return;
  auto frames = std::move(found->second);
  overtaken_.erase(found);
  hand_on(to, std::move(frames));
}

void FaultyMessenger::hold(Clock::time_point until, Held held) {
  held_.emplace(until, std::move(held));
  changed_.notify_all();
}

void FaultyMessenger::run(const std::stop_token& stop) {
  name_this_thread("gw faults");
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (held_.empty()) {
      changed_.wait(lock, stop, [this] { return !held_.empty(); });
      continue;
    }
    const auto next = held_.begin();
    if (const auto due = next->first; due > Clock::now()) {
      // Ends early where a frame that is due sooner was added, or leave() has taken them all.
      changed_.wait_until(lock, stop, due, [&] { return held_.empty() || held_.begin()->first < due; });
      continue;
    }
    Held held = std::move(next->second);
    held_.erase(next);
    try {
      if (held.frames.empty()) {
        let_overtaken_go(held.to);
      } else {
        ForwardingMessenger::send(held.to, std::move(held.frames));
      }
    } catch (const TransportError&) {  // NOLINT(bugprone-empty-catch): the job has failed, and its Sink knows
    }
  }
}

void FaultyMessenger::send_held_back() {
  const std::lock_guard lock(mutex_);
  slow_ = nullptr;
  try {
    for (auto& [due, held] : std::exchange(held_, {})) {
      if (!held.frames.empty()) ForwardingMessenger::send(held.to, std::move(held.frames));
    }
    for (auto& [to, frames] : std::exchange(overtaken_, {})) ForwardingMessenger::send(to, std::move(frames));
  } catch (const TransportError&) {  // NOLINT(bugprone-empty-catch): the job has failed, or the node has left
  }
}

void FaultyMessenger::leave(std::chrono::milliseconds timeout) {
  faults_->saw(known_, FaultEvent::kLeave);
  send_held_back();
  ForwardingMessenger::leave(timeout);
}

std::unique_ptr<Messenger> disturbed(std::unique_ptr<Messenger> messenger,
                                     const std::shared_ptr<Faults>& faults,
                                     std::optional<std::uint32_t> known_rank) {
  if (!faults) return messenger;
  return std::make_unique<FaultyMessenger>(std::move(messenger), faults, known_rank);
}

}  // namespace gradwire::transport
