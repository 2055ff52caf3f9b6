#include "kvstore/engine/engine_metrics.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "kvstore/engine/engine_context.h"
#include "kvstore/trace/trace_file.h"

namespace gradwire::kvstore {

std::vector<std::uint64_t> read_numbers(std::string_view text) {
  std::vector<std::uint64_t> numbers;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    const auto [next, error] = std::from_chars(at, end, numbers.emplace_back());
    if (error != std::errc()) break;
    at = next == end ? end : next + 1;
  }
  return numbers;
}

std::vector<transport::PeerCounters> EngineMetrics::counters() const {
  auto counters = context_.messenger->counters();
  // What the Server of this process sends goes over this process's link too.
  if (context_.hosted) std::ranges::move(context_.hosted->counters(), std::back_inserter(counters));
  return counters;
}

DeviceTraffic EngineMetrics::device_traffic() const {
  return context_.rounds.is_open() ? context_.rounds.own().devices().traffic() : DeviceTraffic();
}

PushedBytes EngineMetrics::pushed() const {
  if (!context_.rounds.is_open()) return {};
  const PushedBytes rows = context_.rows ? context_.rows->pushed() : PushedBytes();
  // What the caller gave is counted by its own thread, what leaves the host by the job's.
  return {context_.rounds.own().pushed().raw + rows.raw,
          context_.rounds.job().pushed().encoded + rows.encoded};
}

std::uint64_t EngineMetrics::ahead_bytes() const {
  if (!context_.rounds.is_open()) return 0;
  return context_.rounds.own().ahead_bytes() + (context_.rows ? context_.rows->ahead_bytes() : 0);
}

std::map<std::uint64_t, std::uint64_t> EngineMetrics::staleness() const {
  if (!context_.rounds.is_open()) return {};
  return context_.rounds.job().staleness();
}

std::vector<std::uint64_t> EngineMetrics::waited_for() const {
  context_.rounds.require_open("waited_for");
  std::vector<std::uint64_t> counts(context_.workers());
  for (const Acknowledgement& one : context_.rounds.command("waited for")) {
    const auto theirs = read_numbers(one.text);
    // Each server has counted the rounds of its own partitions.
    for (std::size_t rank = 0; rank < std::min(counts.size(), theirs.size()); ++rank)
      counts[rank] += theirs[rank];
  }
  return counts;
}

std::uint64_t EngineMetrics::mirrored_bytes() const {
  context_.rounds.require_open("mirrored_bytes");
  // No server forwards anything, so none needs to be asked.
  if (context_.options.replicas == 0) return 0;
  std::uint64_t bytes = 0;
  for (const Acknowledgement& one : context_.rounds.command("mirrored")) {
    for (const std::uint64_t number : read_numbers(one.text)) bytes += number;
  }
  return bytes;
}

std::map<std::uint32_t, std::uint32_t> EngineMetrics::replaced_servers() const {
  if (!context_.rounds.is_open()) return {};
  return context_.rounds.job().replaced_servers();
}

double EngineMetrics::codec_seconds() const {
  if (!context_.rounds.is_open()) return 0;
  RoundThread &job = context_.rounds.job(), &own = context_.rounds.own();
  // Both are one thread unless a host's workers sum first. It must not count twice.
  return job.codec_seconds() + (&own == &job ? 0 : own.codec_seconds()) +
         (context_.rows ? context_.rows->codec_seconds() : 0);
}

std::vector<std::string> EngineMetrics::take_notices() const {
  if (!context_.rounds.is_open()) return {};
  RoundThread &job = context_.rounds.job(), &own = context_.rounds.own();
  auto notices = job.take_notices();
  if (&own != &job) std::ranges::move(own.take_notices(), std::back_inserter(notices));
  if (context_.rows) std::ranges::move(context_.rows->take_notices(), std::back_inserter(notices));
  return notices;
}

Trace& EngineMetrics::trace() const {
  if (!context_.options.trace) throw std::logic_error("trace: the engine was opened without one");
  return *context_.options.trace;
}

void EngineMetrics::read_clocks(std::chrono::milliseconds timeout) const {
  // Where a library sums, there is no server whose clock could differ.
  if (context_.rounds.is_open() && context_.options.trace && !context_.in_order)
    context_.rounds.job().clock_probe().read(*context_.options.trace, timeout);
}

std::string EngineMetrics::write_trace(const std::string& folder, const std::string& store) const {
  const bool servers_in_workers = context_.messenger->local_peer().has_value();
  return kvstore::write_trace(
      folder, trace(), {context_.messenger->self(), context_.messenger->world(), servers_in_workers, store});
}

}  // namespace gradwire::kvstore
