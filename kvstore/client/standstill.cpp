#include "kvstore/client/standstill.h"

#include "kvstore/client/round_thread.h"
#include "kvstore/rows/sparse_rows.h"
#include "transport/membership/wait_graph.h"

namespace gradwire::kvstore {
namespace {

/// For so long a wait is no news, and so often it is said again: the coordinator may be another by then.
constexpr auto kEvery = std::chrono::seconds(1);

}  // namespace

void Standstill::watch(RoundThread& rounds, const SparseRows* rows) {
  const std::lock_guard lock(mutex_);
  rounds_ = &rounds;
  rows_ = rows;
}

void Standstill::stop() {
  const std::lock_guard lock(mutex_);
  rounds_ = nullptr;
}

void Standstill::tick() {
  const auto now = Clock::now();
  const auto found = callers_->standstill();
  // Somebody is at work, or has made a call since the last look. The second begins anew.
  if (!found || found->calls != since_calls_) {
    since_calls_ = found ? std::optional(found->calls) : std::nullopt;
    since_ = now;
    // The coordinator may hold the report of a wait that is over.
    if (std::exchange(has_reported_, false)) messenger_.report_wait({.calls = callers_->calls()});
    return;
  }
  if (now - since_ < kEvery || (has_reported_ && now - reported_ < kEvery)) return;
  has_reported_ = true;
  reported_ = now;
  report({});
}

void Standstill::ask(const std::set<std::string>& rounds) { report(rounds); }

/// Behind all that was posted before: what callers have begun is then begun.
void Standstill::report(const std::set<std::string>& asked) {
  const std::lock_guard lock(mutex_);
  // The Engine is closing, and its threads may end.
  if (rounds_ == nullptr) return;
  rounds_->post([this, asked, rounds = rounds_, rows = rows_] {
    const auto found = callers_->standstill();
    transport::WaitReport report{.calls = found ? found->calls : callers_->calls()};
    if (found) {
      for (const Callers::Wait& wait : found->waits) rounds->waits().describe(wait, report);
      for (const std::string& round : asked) {
        const bool has_begun =
            rounds->waits().has_begun(round, *found) || (rows != nullptr && rows->has_begun(round));
        (has_begun ? report.begun : report.not_begun).push_back(round);
      }
      // A caller continued while this was described, so the report may mix two moments. It must not be sent.
      if (callers_->calls() != found->calls) report = {.calls = callers_->calls()};
    }
    messenger_.report_wait(report);
  });
}

}  // namespace gradwire::kvstore
