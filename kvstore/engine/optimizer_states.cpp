#include "kvstore/engine/optimizer_states.h"

#include <fmt/format.h>

#include <memory>
#include <stdexcept>

#include "kvstore/aggregate/partition_state.h"
#include "kvstore/aggregate/updater.h"
#include "kvstore/checkpoint/checkpoint_file.h"
#include "kvstore/checkpoint/optimizer_file.h"
#include "kvstore/engine/engine_context.h"
#include "kvstore/engine/server_states.h"
#include "kvstore/engine/slot_buckets.h"

namespace gradwire::kvstore {

/// No other rank has to come, so tables of rows, which would have to settle, are refused.
void OptimizerStates::require_states(const char* verb) const {
  context_.rounds.require_open(verb);
  if (!context_.optimizer.is_set) {
    throw std::logic_error(fmt::format(
        "{}: no optimizer is set, so servers keep no states; call set_optimizer on every worker first, as "
        "set_optimizer(\"sgd\", learning_rate=0.1), or save the states of the optimizer that updates the "
        "weights in the workers",
        verb));
  }
  if (context_.rows && context_.rows->has_tables()) {
    throw std::invalid_argument(
        fmt::format("{}: this store has tables of rows, of which no such file holds the optimizer's states; "
                    "save a checkpoint (save_checkpoint), which does, or keep gradients dense "
                    "(sparse_as_dense=True)",
                    verb));
  }
  context_.slots->require_no_step(verb);
  context_.rounds.await(verb);
}

/// No other rank has to come: a round needs this one's push, so that states stand still until it goes on.
void OptimizerStates::save(const std::string& path, Dump dump) {
  require_states("save_optimizer_states");
  const Layout here = context_.keys.layout();
  const OptimizerHead head = optimizer_head(dump, context_.optimizer.text, here);
  // All ranks may write the file, at once: each writes its own, and one of them, whole, keeps the name.
  CheckpointWriter file(path, fmt::format(".worker-{}{}", context_.rank(), kUnfinished));
  add_head(file, head);
  for (const HeldPart& part : servers_.parts()) {
    const auto number = same_tensor(head.keys, here, part.key);
    if (!number) continue;  // a bucket: no optimizer sees its sums
    const transport::Buffer state = servers_.read(part, StateScope::kOptimizer);
    file.add({RecordKind::kOptimizerState, *number, part.offset, part.count}, state.bytes());
  }
  file.finish();
}

std::string OptimizerStates::load(const std::string& path) {
  require_states("load_optimizer_states");
  std::unique_ptr<OptimizerFile> file;
  const auto opened = context_.meeting.attempt("optimizer states are read", [&] {
    // Where a library sums, each rank has them to itself.
    if (context_.rank() != 0 && !context_.in_order) return std::string();
    file = std::make_unique<OptimizerFile>(path);
    require_own(*file, path);
    return file->head().dump == Dump::kStates ? std::string() : file->head().optimizer;
  });
  // Each rank reads the path by itself, and may see another file there.
  if (context_.in_order) {
    const FileSeal seal = file->seal();
    const auto own = fmt::format("{} bytes with the checksum {:08x}", seal.bytes, seal.digest);
    context_.meeting.agree("files of load_optimizer_states", own, "optimizer states");
  }
  const std::string& optimizer = opened.front();
  // Before the states: setting another optimizer drops what servers have of the one before.
  if (!optimizer.empty()) set_optimizer_(optimizer);
  context_.meeting.attempt("optimizer states are restored", [&] {
    ++loads_;
    if (file) restore(*file);
    return std::string();
  });
  return optimizer;
}

void OptimizerStates::require_own(const OptimizerFile& file, const std::string& path) const {
  require_same_keys({"load_optimizer_states", path}, file.head().keys, context_.keys.layout());
  const std::string& set = context_.optimizer.text;
  const std::string saved = parse_optimizer(file.head().optimizer).name;
  if (file.head().dump == Dump::kStatesAndParameters || saved == parse_optimizer(set).name) return;
  throw std::invalid_argument(
      fmt::format("load_optimizer_states: {} holds the states of {}, and this job has set '{}'; call "
                  "set_optimizer with {} first",
                  path, saved, set, saved));
}

void OptimizerStates::restore(const OptimizerFile& file) {
  const Layout here = context_.keys.layout();
  for (const HeldPart& part : servers_.parts()) {
    const auto number = same_tensor(file.head().keys, here, part.key);
    if (!number) continue;  // a bucket
    // Above all rounds' steps: a late acknowledgement is none of a push.
    servers_.write(part, StateScope::kOptimizer, encode_state(file.state(*number, part.offset, part.count)),
                   kMaxSteps + loads_);
  }
}

}  // namespace gradwire::kvstore
