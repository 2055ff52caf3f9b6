// Meeting runs steps of all workers together: they exchange texts, and an error on one of them is an error
// on all.
//
// Threading: collectives: by one thread at a time and in the same order on every worker.
// Failure: TimeoutError naming the ranks that did not come within slow_abort.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvstore/options.h"
#include "kvstore/runtime/callers.h"
#include "transport/messenger.h"

namespace gradwire::kvstore {

class WorkerRounds;

class Meeting {
 public:
  /// All that is given by reference outlives this.
  Meeting(transport::Messenger& messenger, const EngineOptions& options, const WorkerRounds& rounds,
          std::shared_ptr<Callers> callers)
      : messenger_(messenger), options_(options), rounds_(rounds), callers_(std::move(callers)) {}

  std::uint32_t rank() const { return messenger_.self().rank; }
  std::uint32_t workers() const { return messenger_.world().workers; }

  /// Gives blob to all and returns every worker's in rank order. Throws what one of them has refused.
  std::vector<std::string> all_gather(std::string_view name, std::string_view blob);
  /// Takes part in the exchange of that name, with which all begin the call that is wrong here: it throws
  /// std::invalid_argument with this text on all of them. A job that has changed its members goes on without
  /// this worker instead: no-op there.
  void refuse(std::string_view name, const std::string& text);
  /// Has what a check of this worker's own call throws be thrown on all, which begin that call with the
  /// exchange.
  void check_for_all(std::string_view name, const std::function<void()>& check);
  /// Has all workers give the same text, of lines. Throws std::invalid_argument that names the first line in
  /// which one differs from worker 0, on all of them (agreement.h). name: of the exchange; empty: what.
  void agree(const std::string& what, const std::string& text, std::string_view name = {});
  /// Runs work on all ranks and returns the results, in rank order. If it fails on any rank, all throw the
  /// error of the first of those. A failure of the whole job is thrown at once, because no rank could be
  /// asked any more.
  std::vector<std::string> attempt(const char* what, const std::function<std::string()>& work);

 private:
  std::vector<std::string> meet(std::string_view name, std::string_view blob);

  transport::Messenger& messenger_;
  const EngineOptions& options_;
  const WorkerRounds& rounds_;
  const std::shared_ptr<Callers> callers_;  // owners: Engine, this, rows and tickets
};

}  // namespace gradwire::kvstore
