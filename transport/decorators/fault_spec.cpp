#include "transport/decorators/fault_spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <stdexcept>
#include <utility>

namespace gradwire::transport {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

struct EventName {
  FaultEvent event;
  std::string_view name;
  bool of_scheduler, of_server, of_worker;

  bool is_of(Role role) const {
    return role == Role::kScheduler ? of_scheduler : role == Role::kServer ? of_server : of_worker;
  }
};

constexpr std::array kEvents{
    EventName{FaultEvent::kStart, "start", true, true, true},
    EventName{FaultEvent::kInit, "init", false, true, true},
    EventName{FaultEvent::kPush, "push", false, true, true},
    EventName{FaultEvent::kReply, "reply", false, true, true},
    EventName{FaultEvent::kPull, "pull", false, true, true},
    EventName{FaultEvent::kCheckpoint, "checkpoint", false, true, true},
    EventName{FaultEvent::kBlob, "blob", false, true, true},
    EventName{FaultEvent::kBarrier, "barrier", true, false, true},
    EventName{FaultEvent::kHeartbeat, "heartbeat", true, false, false},
    EventName{FaultEvent::kLeave, "leave", true, true, true},
};

// quantity() takes the first that fits: "s" comes last, as the others end in it. So does "bit" below.
constexpr std::array<std::pair<std::string_view, double>, 4> kTimes{
    {{"us", 1e-6}, {"ms", 1e-3}, {"min", 60.0}, {"s", 1.0}}};
constexpr std::array<std::pair<std::string_view, double>, 4> kRates{
    {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"bit", 1.0}}};

/// One item of a spec, for its error.
struct Item {
  std::string_view text, name, value;

  [[noreturn]] void refuse(const std::string& expected) const {
    throw std::invalid_argument("faults: '" + std::string(text.substr(0, 120)) + "' is not valid: expected " +
                                expected);
  }
};

std::pair<std::string_view, std::optional<std::string_view>> cut(std::string_view text, char at) {
  const std::size_t place = text.find(at);
  if (place == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, place), text.substr(place + 1)};
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  return out;
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  // Written so that a NaN, which from_chars reads, is refused. The bound keeps sums of times and bytes
  // finite.
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0) || value > 1e15)
    return std::nullopt;
  return value;
}

std::optional<std::uint64_t> whole(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "5ms" by the first unit that it ends in.
template <typename Units>
std::optional<double> quantity(std::string_view text, const Units& units) {
  const std::string given = lower(text);
  for (const auto& [unit, factor] : units) {
    if (!given.ends_with(unit)) continue;
    const auto value = number(std::string_view(given).substr(0, given.size() - unit.size()));
    return value ? std::optional(*value * factor) : std::nullopt;
  }
  return std::nullopt;
}

double share_of(const Item& item, std::string_view text) {
  const bool percent = text.ends_with('%');
  auto value = number(percent ? text.substr(0, text.size() - 1) : text);
  if (value && percent) *value /= 100;
  if (!value || *value > 1)
    item.refuse("a share of the frames from 0 to 100%, such as " + std::string(item.name) +
                (item.name == "delay" ? "=5ms@10%" : "=1%"));
  return *value;
}

microseconds time_of(const Item& item, std::string_view text, const char* example) {
  const auto seconds = quantity(text, kTimes);
  // Eleven days: a longer time is a mistake, and is far below what microseconds in 64 bits hold.
  if (!seconds || *seconds > 1e6) item.refuse("a time in us, ms, s or min, such as " + std::string(example));
  return microseconds(static_cast<std::int64_t>(*seconds * 1e6));
}

std::string name_of(Role role) {
  return role == Role::kScheduler ? "scheduler" : role == Role::kServer ? "server" : "worker";
}

NodePattern node_of(const Item& item, std::string_view text) {
  constexpr const char* kExpected = "nodes such as worker:1, server:*, or scheduler";
  const auto [role, rank] = cut(text, ':');
  // There is one, so it has no rank to name.
  if (role == "scheduler" && !rank) return {Role::kScheduler, std::nullopt};
  NodePattern node;
  if (role == "server") node.role = Role::kServer;
  if ((role != "worker" && role != "server") || !rank) item.refuse(kExpected);
  if (*rank == "*") return node;
  const auto value = whole(*rank);
  // Ranks have 24 bits on the wire, and the largest means "no rank yet".
  if (!value || *value > 0xFFFFFE) item.refuse(kExpected);
  node.rank = static_cast<std::uint32_t>(*value);
  return node;
}

std::vector<NodePattern> nodes_of(const Item& item, std::string_view text) {
  std::vector<NodePattern> nodes;
  for (std::optional<std::string_view> rest = text; rest;) {
    const auto [one, more] = cut(*rest, '+');
    nodes.push_back(node_of(item, one));
    // A FaultyMessenger is around workers and servers only, and control frames are not disturbed.
    if (nodes.back().role == Role::kScheduler)
      item.refuse("workers and servers: what the scheduler says and hears is not disturbed");
    rest = more;
  }
  return nodes;
}

FaultSpec::Partition partition_of(const Item& item) {
  constexpr const char* kExample = "partition=worker:1|server:0+server:1@10s+2s, who|from whom@begin+length";
  const auto [groups, when] = cut(item.value, '@');
  const auto [one, other] = cut(groups, '|');
  if (!when || !other) item.refuse(kExample);
  const auto [begin, length] = cut(*when, '+');
  if (!length) item.refuse(kExample);
  const auto in_ms = [&](std::string_view text) {
    return std::chrono::duration_cast<milliseconds>(time_of(item, text, kExample));
  };
  return {nodes_of(item, one), nodes_of(item, *other), in_ms(begin), in_ms(*length)};
}

FaultSpec::Slow slow_of(const Item& item) {
  constexpr const char* kExample = "slow=worker:2@10mbit+5ms, node@rate+latency, the latency may be left out";
  const auto [node, limits] = cut(item.value, '@');
  if (!limits) item.refuse(kExample);
  const auto [rate, latency] = cut(*limits, '+');
  const auto bits = quantity(rate, kRates);
  if (!bits || *bits < 1) item.refuse(kExample);
  FaultSpec::Slow slow{node_of(item, node), *bits / 8, {}};
  if (latency) slow.latency = time_of(item, *latency, kExample);
  return slow;
}

FaultSpec::Kill kill_of(const Item& item) {
  constexpr const char* kExample =
      "kill=worker:1@push:100, node@event:which, the first where that is left out";
  const auto [node, at] = cut(item.value, '@');
  if (!at) item.refuse(kExample);
  const auto [name, count] = cut(*at, ':');
  FaultSpec::Kill kill{node_of(item, node)};
  const auto found = std::ranges::find(kEvents, name, &EventName::name);
  // An event that the node never counts would be a kill that never happens, and a test that passes without
  // one.
  if (found == kEvents.end() || !found->is_of(kill.node.role)) {
    std::string names;
    for (const EventName& event : kEvents) {
      if (event.is_of(kill.node.role)) names += (names.empty() ? "" : ", ") + std::string(event.name);
    }
    const bool is_scheduler = kill.node.role == Role::kScheduler;
    item.refuse("an event of " + std::string(is_scheduler ? "the scheduler" : name_of(kill.node.role) + "s") +
                ": " + names + "; as in " + kExample);
  }
  kill.event = found->event;
  if (!count) return kill;
  const auto value = whole(*count);
  // Events are counted from 1.
  if (!value || *value == 0) item.refuse(kExample);
  kill.count = *value;
  return kill;
}

void take(const Item& item, FaultSpec& spec) {
  if (item.name == "seed") {
    const auto value = whole(item.value);
    if (!value) item.refuse("a whole number below 2^64, such as seed=7");
    spec.seed = *value;
  } else if (item.name == "drop") {
    spec.drop = share_of(item, item.value);
  } else if (item.name == "duplicate") {
    spec.duplicate = share_of(item, item.value);
  } else if (item.name == "reorder") {
    spec.reorder = share_of(item, item.value);
  } else if (item.name == "corrupt") {
    spec.corrupt = share_of(item, item.value);
  } else if (item.name == "delay") {
    const auto [time, share] = cut(item.value, '@');
    if (!share) item.refuse("delay=5ms@10%, how long@how many of the frames");
    spec.delay = time_of(item, time, "delay=5ms@10%");
    spec.delayed = share_of(item, *share);
  } else if (item.name == "partition") {
    spec.partitions.push_back(partition_of(item));
  } else if (item.name == "slow") {
    spec.slow.push_back(slow_of(item));
  } else if (item.name == "kill") {
    spec.kills.push_back(kill_of(item));
  } else {
    item.refuse(
        "seed=, drop=, duplicate=, reorder=, corrupt=, delay=, partition=, slow= or kill=; for instance "
        "seed=7,drop=1%");
  }
}

}  // namespace

std::string to_string(FaultEvent event) {
  return std::string(std::ranges::find(kEvents, event, &EventName::event)->name);
}

std::string to_string(const NodePattern& pattern) {
  if (pattern.role == Role::kScheduler) return name_of(pattern.role);
  return name_of(pattern.role) + ":" + (pattern.rank ? std::to_string(*pattern.rank) : "*");
}

std::string to_string(const FaultSpec::Kill& kill) {
  return "kill=" + to_string(kill.node) + "@" + to_string(kill.event) + ":" + std::to_string(kill.count);
}

void require_members(const FaultSpec& spec, std::uint32_t workers, std::uint32_t servers) {
  const auto require = [&](const NodePattern& node) {
    const std::uint32_t count = node.role == Role::kWorker ? workers : servers;
    // A kill of the scheduler has no rank and passes. "server:*" passes in a job without servers, too.
    if (!node.rank || *node.rank < count) return;
    const std::string role = name_of(node.role);
    std::string there = "no " + role + "s";
    if (count > 0) there = role + ":0";
    if (count > 1) there += " to " + role + ":" + std::to_string(count - 1);
    throw std::invalid_argument("faults: there is no " + to_string(node) + " in this job, which has " +
                                there);
  };
  for (const FaultSpec::Kill& kill : spec.kills) require(kill.node);
  for (const FaultSpec::Slow& slow : spec.slow) require(slow.node);
  for (const FaultSpec::Partition& cut : spec.partitions) {
    std::ranges::for_each(cut.one, require);
    std::ranges::for_each(cut.other, require);
  }
}

FaultSpec parse_faults(std::string_view text) {
  FaultSpec spec;
  std::set<std::string_view> once;
  for (std::optional<std::string_view> rest = text; rest;) {
    const auto [one, more] = cut(*rest, ',');
    const auto [name, value] = cut(one, '=');
    const Item item{one, name, value.value_or("")};
    const bool is_list = name == "partition" || name == "slow" || name == "kill";
    if (!is_list && !once.insert(name).second)
      item.refuse("each fault once; of partition, slow and kill any number");
    take(item, spec);
    rest = more;
  }
  return spec;
}

}  // namespace gradwire::transport
