#include "kvstore/client/round_waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "kvstore/rows/sparse_rows.h"
#include "transport/membership/wait_graph.h"

namespace gradwire::kvstore {
namespace {

std::string round_of_key(KeyId key, std::uint64_t step) { return fmt::format("key {} round {}", key, step); }

}  // namespace

/// The round that must be begun by all others before the tensor's operation in flight can end; none: it needs
/// nobody.
std::optional<std::uint64_t> RoundWaits::round_needed(const Tensor& tensor) const {
  if (!tensor.current || !tensor.current->pushes()) return std::nullopt;
  const std::uint64_t step = tensor.step - 1;
  if (!async_workers_) return step;
  const auto bound = async_workers_->staleness_bound;
  return bound && step >= *bound ? std::optional(step - *bound) : std::nullopt;  // as PushClocks has it
}

void RoundWaits::describe(const Callers::Wait& wait, transport::WaitReport& report) const {
  using For = Callers::Wait::For;
  transport::Wait described{wait.what, {}, {}};
  switch (wait.what_for) {
    case For::kExchange:
      described.what = fmt::format("'{}'", wait.what);
      described.exchange = wait.number;
      break;
    case For::kKey:
    case For::kTurn: {
      const Tensor& tensor = tensors_[wait.number];
      // No push of the key is held behind a round. The caller waits for this worker's own codec threads, and
      // for nobody else.
      if (wait.what_for == For::kTurn && tensor.held_count == 0) break;
      if (const auto round = round_needed(tensor)) {
        described.what = fmt::format("{}, round {} of key '{}'", wait.what, *round, tensor.spec.name);
        described.needs.push_back(round_of_key(tensor.id, *round));
      }
      break;
    }
    case For::kTable:
      described.what = fmt::format("{}, round {} of table {}", wait.what, wait.step, wait.number);
      // At once a pull waits only for its worker's own pushes, or for clocks of workers that are behind,
      // which are no rounds.
      if (!async_workers_) described.needs.push_back(SparseRows::round_of_table(wait.number, wait.step));
      break;
    case For::kOwnRounds:
      for (const Tensor* tensor : active_) {
        const auto round = round_needed(*tensor);
        // A report that names some of the rounds is enough: the wait ends only when all have come.
        if (!round || described.needs.size() == transport::kMostNeeds) continue;
        if (described.needs.empty())
          described.what =
              fmt::format("{}, behind round {} of key '{}'", wait.what, *round, tensor->spec.name);
        described.needs.push_back(round_of_key(tensor->id, *round));
      }
      break;
  }
  report.waits.push_back(std::move(described));
}

/// Also those that wait here for the one before; and where it has joined, or met the others (push_clocks.h),
/// all: they go on without it. Of what is no round of a key: no.
bool RoundWaits::has_begun(const std::string& round, const Callers::Standstill& standing) const {
  unsigned long long key = 0, step = 0;
  if (std::sscanf(round.c_str(), "key %llu round %llu", &key, &step) != 2 || key >= tensors_.size())
    return false;
  const bool is_excused = std::ranges::any_of(standing.waits, [this](const Callers::Wait& wait) {
    return wait.what_for == Callers::Wait::For::kExchange && (wait.what == "join" || async_workers_);
  });
  if (is_excused) return true;
  const Tensor& tensor = tensors_[key];
  // A push that waits here goes out without its caller, so it holds nobody up.
  const auto waiting = std::ranges::count_if(tensor.waiting, &Operation::pushes);
  return step < tensor.step + static_cast<std::uint64_t>(waiting);
}

}  // namespace gradwire::kvstore
