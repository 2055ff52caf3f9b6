#include "kvstore/engine/engine_context.h"

#include <fmt/format.h>

#include <stdexcept>

#include "kvstore/engine/slot_buckets.h"

namespace gradwire::kvstore {

void EngineContext::require_between_steps(const char* verb) const {
  rounds.require_open(verb);
  slots->require_no_step(verb);
  settle(verb);
}

void EngineContext::barrier() {
  // Otherwise a pull brings the answer to its worker's last push, and all workers' pushes are in that.
  if (options.async) settle("barrier");
  meeting.all_gather("barrier", "");
}

void EngineContext::require_optimizer(const char* verb) const {
  if (!options.async || optimizer.is_set) return;
  throw std::invalid_argument(fmt::format(
      "{}: this store applies each push to the weight at once, and there is no optimizer that could; call "
      "set_optimizer on every worker first, as set_optimizer(\"sgd\", learning_rate=0.1), or use a "
      "store that sums, as dist_sync",
      verb));
}

SparseRows& EngineContext::require_rows() const {
  callers->note_call();
  rounds.require_open("sparse");
  if (rows) return *rows;
  throw std::invalid_argument(
      "sparse rows: they need servers, and where a library sums there is none; use a store such as "
      "'allreduce' or 'dist_sync'");
}

}  // namespace gradwire::kvstore
