// EngineContext is what the parts of an Engine share. Their headers only name it, so that including engine.h
// does not include a worker's threads.
//
// Threading: each member says its own.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "kvstore/client/standstill.h"
#include "kvstore/collectives/collectives.h"
#include "kvstore/engine/key_table.h"
#include "kvstore/engine/meeting.h"
#include "kvstore/engine/worker_rounds.h"
#include "kvstore/options.h"
#include "kvstore/rows/sparse_rows.h"
#include "kvstore/server/server.h"

namespace gradwire::kvstore {

class SlotBuckets;

/// The optimizer that updates weights on the servers.
struct ServersOptimizer {
  std::atomic<bool> is_set{false};  ///< pushes may come from other threads than set_optimizer()
  std::string text;                 ///< as in Engine::set_optimizer(); empty: none
};

struct EngineContext {
  EngineContext(std::unique_ptr<transport::Messenger> line, const EngineOptions& given, bool sums_in_order,
                std::unique_ptr<Server> server)
      : options(given),
        in_order(sums_in_order),
        keys(rounds, line->world().servers, given.partition_elements),
        messenger(std::move(line)),
        standstill(*messenger, callers),
        hosted(std::move(server)),
        rounds(*messenger, options, in_order, callers),
        meeting(*messenger, options, rounds, callers) {}

  std::uint32_t rank() const { return messenger->self().rank; }
  std::uint32_t workers() const { return messenger->world().workers; }
  std::vector<KeySpec> tables() const { return rows ? rows->tables() : std::vector<KeySpec>(); }
  /// Waits until what this worker has pushed is with the servers, and its rounds are over.
  void settle(const char* verb) const {
    rounds.require_open(verb);
    if (rows) rows->settle(options.slow_abort);
    rounds.await(verb);
  }
  /// The same between the steps of this worker: throws std::logic_error in one.
  void require_between_steps(const char* verb) const;
  /// Where pushes are applied at once, what all workers pushed before it is in the weights behind it.
  void barrier();
  /// Throws std::invalid_argument where pushes are applied at once and no optimizer could.
  void require_optimizer(const char* verb) const;
  /// Throws std::invalid_argument where a library sums, and std::logic_error once the engine is closed.
  SparseRows& require_rows() const;

  const EngineOptions options;
  const bool in_order;                                                   ///< placement native: a library sums
  const std::shared_ptr<Callers> callers = std::make_shared<Callers>();  // owners: this, rows and tickets
  KeyTable keys;  // its buckets' values outlive what is sent from them
  const std::unique_ptr<transport::Messenger> messenger;
  Standstill standstill;  // outlives the threads that call it
  std::unique_ptr<Server> hosted;
  WorkerRounds rounds;
  Meeting meeting;
  ServersOptimizer optimizer;
  std::unique_ptr<Collectives> collectives;
  std::unique_ptr<SparseRows> rows;    ///< none where a library sums
  const SlotBuckets* slots = nullptr;  ///< the Engine's
};

}  // namespace gradwire::kvstore
