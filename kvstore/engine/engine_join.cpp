// Engine: workers that have run out of data wait for the others, whose rounds go on without them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string_view>

#include "kvstore/client/round_thread.h"
#include "kvstore/engine/engine.h"
#include "kvstore/engine/engine_context.h"
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

/// Rounds that need every worker cannot go on without one.
void Engine::require_optional_workers() const {
  std::string_view why;
  if (context_->in_order) {
    why =
        "where a library sums, every rank must take part in every round; give every worker the same number "
        "of steps, or use a store such as 'allreduce' or 'dist_sync'";
  } else if (context_->rounds.hierarchy()) {
    why =
        "with hierarchy=host the workers of a host sum first, which needs all of them; give every worker the "
        "same number of steps, or leave the hierarchy out";
  } else if (context_->options.async) {
    why =
        "this store applies each push at once, and no round waits for a worker that has run out of data; "
        "call "
        "barrier() in its place, in which it waits for the others while they push on, or close the store";
  } else if (context_->rows->has_tables()) {
    why =
        "rounds of tables of rows need every worker; push no rows instead, as often as the others push some, "
        "or keep gradients dense (sparse_as_dense=True)";
  }
  if (!why.empty()) throw std::invalid_argument(fmt::format("join: {}", why));
}

std::uint32_t Engine::join() {
  WorkerRounds& rounds = context_->rounds;
  transport::Messenger& line = *context_->messenger;
  rounds.require_open("join");
  require_optional_workers();
  context_->callers->note_call();
  // A worker that has joined is not awaited, so its own pushes must be answered before.
  rounds.await("join");
  // Server 0's count: servers may see joins in different orders, and one of them has to decide.
  Joined own{rounds.command("join").front().step, {}};
  RoundThread& job = rounds.job();
  job.between_rounds([&] { own.steps = job.tensors().steps(); });
  context_->callers->note_call();
  const Callers::Waiting waiting(*context_->callers,
                                 {Callers::Wait::For::kExchange, "join", line.exchanges()});
  std::vector<Joined> ranks;
  for (const std::string& text : line.exchange("join", write(own), context_->options.slow_abort))
    ranks.push_back(read(text, own.steps.size()));
  // Before this worker pushes again: its next round has to be the one from which all go on.
  job.between_rounds([&] { job.tensors().catch_up(spread_of(ranks)); });
  const auto last = std::ranges::max_element(ranks, {}, &Joined::lateness);
  return static_cast<std::uint32_t>(last - ranks.begin());
}

}  // namespace gradwire::kvstore
