// Engine: workers that have run out of data wait for the others, whose rounds go on without them; and for
// whom rounds have waited.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <stdexcept>
#include <string_view>

#include "kvstore/client/round_thread.h"
#include "kvstore/engine/engine.h"
#include "kvstore/placement/hierarchy.h"
#include "kvstore/rows/sparse_rows.h"

namespace gradwire::kvstore {
namespace {

/// What a worker brings to the end of a join.
struct Joined {
  std::uint64_t place = 0;           ///< how many had joined before it
  std::vector<std::uint64_t> steps;  ///< rounds that it has begun, by tensor
  /// Who has begun most rounds was there when all others had joined; among several, who joined last.
  auto lateness() const { return std::pair(std::reduce(steps.begin(), steps.end()), place); }
};

std::string write(const Joined& joined) {
  return fmt::format("{},{}", joined.place, fmt::join(joined.steps, ","));
}

/// "3,0,17"
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

Joined read(std::string_view text, std::size_t tensors) {
  const std::vector<std::uint64_t> numbers = read_numbers(text);
  if (numbers.size() != tensors + 1) {
    throw transport::TransportError(
        fmt::format("join: a worker has {} keys, this one {}", numbers.size(), tensors + 1));
  }
  return {numbers.front(), {numbers.begin() + 1, numbers.end()}};
}

std::vector<StepSpread> spread_of(const std::vector<Joined>& ranks) {
  std::vector<StepSpread> spreads;
  for (std::size_t tensor = 0; tensor < ranks.front().steps.size(); ++tensor) {
    const auto step_of = [tensor](const Joined& joined) { return joined.steps[tensor]; };
    const auto [least, most] = std::ranges::minmax_element(ranks, {}, step_of);
    spreads.push_back({step_of(*least), step_of(*most)});
  }
  return spreads;
}

}  // namespace

std::vector<std::uint64_t> Engine::waited_for() {
  require_open("waited_for");
  std::vector<Acknowledgement> said;
  thread_->command("waited for", &said).wait();
  std::vector<std::uint64_t> counts(num_workers());
  for (const Acknowledgement& one : said) {
    const auto theirs = read_numbers(one.text);
    for (std::size_t rank = 0; rank < std::min(counts.size(), theirs.size()); ++rank)
      counts[rank] += theirs[rank];
  }
  return counts;
}

std::uint64_t Engine::mirrored_bytes() {
  require_open("mirrored_bytes");
  if (options_.replicas == 0) return 0;
  std::vector<Acknowledgement> said;
  thread_->command("mirrored", &said).wait();
  std::uint64_t bytes = 0;
  for (const Acknowledgement& one : said) {
    for (const std::uint64_t number : read_numbers(one.text)) bytes += number;
  }
  return bytes;
}

std::map<std::uint32_t, std::uint32_t> Engine::replaced_servers() const {
  return thread_ ? thread_->replaced_servers() : std::map<std::uint32_t, std::uint32_t>();
}

/// Rounds that need every worker cannot go on without one.
void Engine::require_optional_workers() const {
  std::string_view why;
  if (in_order_) {
    why =
        "where a library sums, every rank must take part in every round; give every worker the same number "
        "of steps, or use a store such as 'allreduce' or 'dist_sync'";
  } else if (hierarchy_) {
    why =
        "with hierarchy=host the workers of a host sum first, which needs all of them; give every worker the "
        "same number of steps, or leave the hierarchy out";
  } else if (options_.at_once) {
    why =
        "this store applies each push at once, and no round waits for a worker that has run out of data; "
        "call "
        "barrier() in its place, in which it waits for the others while they push on, or close the store";
  } else if (sparse_->has_tables()) {
    why =
        "rounds of tables of rows need every worker; push no rows instead, as often as the others push some, "
        "or keep gradients dense (sparse_as_dense=True)";
  }
  if (!why.empty()) throw std::invalid_argument(fmt::format("join: {}", why));
}

std::uint32_t Engine::join() {
  require_open("join");
  require_optional_workers();
  callers_->note_call();
  await_rounds("join");
  std::vector<Acknowledgement> said;
  thread_->command("join", &said).wait();
  Joined own{said.front().step, {}};
  thread_->between_rounds({}, [&] { own.steps = thread_->tensors().steps(); }).wait();
  callers_->note_call();
  const Callers::Waiting waiting(*callers_, {Callers::Wait::For::kExchange, "join", messenger_->exchanges()});
  std::vector<Joined> ranks;
  for (const std::string& text : messenger_->exchange("join", write(own), options_.slow_abort))
    ranks.push_back(read(text, own.steps.size()));
  thread_->between_rounds({}, [&] { thread_->tensors().catch_up(spread_of(ranks)); }).wait();
  const auto last = std::ranges::max_element(ranks, {}, &Joined::lateness);
  return static_cast<std::uint32_t>(last - ranks.begin());
}

}  // namespace gradwire::kvstore
