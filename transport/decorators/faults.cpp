#include "transport/decorators/faults.h"

#include <unistd.h>

#include <csignal>
#include <stdexcept>

namespace gradwire::transport {

std::string_view name_of(Fault fault) {
  constexpr std::array<std::string_view, kFaultKinds> kNames{
      "dropped", "duplicated", "reordered", "delayed", "corrupted", "partitioned", "slowed"};
  return kNames[static_cast<std::size_t>(fault)];
}

std::string to_string(const FaultCounts& counts) {
  std::string text = std::to_string(counts.frames) + " frames";
  const char* join = ": ";
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    if (counts.met[i] == 0) continue;
    text += join + std::to_string(counts.met[i]) + " " + std::string(name_of(static_cast<Fault>(i)));
    join = ", ";
  }
  for (const std::string& kill : counts.unmet_kills) text += "; " + kill;
  return text;
}

std::shared_ptr<Faults> Faults::of(std::string_view text, PayloadChecksum checksum, Log log) {
  if (text.empty()) return nullptr;
  FaultSpec spec = parse_faults(text);
  // Damage that nothing finds would go into the weights, and a test would look at wrong numbers.
  if (spec.corrupt > 0 && checksum == PayloadChecksum::kOff) {
    throw std::invalid_argument(
        "faults: corrupt= does not go with checksum=off, where nothing could find the damage; leave one of "
        "the two "
        "out");
  }
  return std::make_shared<Faults>(std::move(spec), std::move(log));
}

std::function<void(Kind)> scheduler_witness(std::shared_ptr<Faults> faults) {
  if (!faults) return {};
  faults->host({Role::kScheduler, 0});
  return [faults = std::move(faults)](Kind kind) {
    const Node scheduler{Role::kScheduler, 0};
    // Before the scheduler handles the frame (ZmqOptions::witness): it dies without having answered.
    if (kind == Kind::kExchange) faults->saw(scheduler, FaultEvent::kBarrier);
    if (kind == Kind::kHeartbeat) faults->saw(scheduler, FaultEvent::kHeartbeat);
    if (kind == Kind::kGoodbye) faults->saw(scheduler, FaultEvent::kLeave);
  };
}

FaultCounts Faults::counts() const {
  const std::lock_guard lock(mutex_);
  FaultCounts counts = counts_;
  for (const FaultSpec::Kill& kill : spec_.kills) {
    for (const Node node : hosted_) {
      if (!kill.node.matches(node)) continue;
      const auto found = events_.find({node, kill.event});
      const std::uint64_t came_to = found == events_.end() ? 0 : found->second;
      if (came_to < kill.count)
        counts.unmet_kills.push_back(to_string(kill) + " did not happen: " + to_string(node) + " came to " +
                                     std::to_string(came_to));
    }
  }
  return counts;
}

void Faults::host(Node node) {
  const std::lock_guard lock(mutex_);
  hosted_.insert(node);
}

void Faults::count(Fault fault) {
  const std::lock_guard lock(mutex_);
  ++counts_.met[static_cast<std::size_t>(fault)];
}

void Faults::count_frame() {
  const std::lock_guard lock(mutex_);
  ++counts_.frames;
}

void Faults::saw(Node node, FaultEvent event) {
  if (spec_.kills.empty()) return;
  std::uint64_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    count = ++events_[{node, event}];
  }
  for (const FaultSpec::Kill& kill : spec_.kills) {
    if (!kill.node.matches(node) || kill.event != event || kill.count != count) continue;
    if (log_) {
      // SIGKILL leaves no time for a word afterwards. The lock is not held, since log_ is the caller's code.
      log_("faults: " + to_string(node) + " kills itself at " + to_string(event) + ":" +
           std::to_string(count) + ", seed=" + std::to_string(spec_.seed));
    }
    ::kill(::getpid(), SIGKILL);
  }
}

}  // namespace gradwire::transport
