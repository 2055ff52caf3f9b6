// Engine: what the servers' optimizer remembers of weights, saved to one file and put back from it.
#include <fmt/format.h>

#include <memory>
#include <stdexcept>

#include "kvstore/aggregate/partition_state.h"
#include "kvstore/aggregate/updater.h"
#include "kvstore/checkpoint/checkpoint_file.h"
#include "kvstore/checkpoint/optimizer_file.h"
#include "kvstore/client/round_thread.h"
#include "kvstore/engine/engine.h"
#include "kvstore/rows/sparse_rows.h"
#include "kvstore/wire/agreement.h"

namespace gradwire::kvstore {

using transport::Buffer;

/// As require_between_steps(), but no other rank has to come, so tables of rows cannot settle.
void Engine::require_still(const char* verb) {
  require_open(verb);
  if (sparse_ && sparse_->has_tables()) {
    throw std::invalid_argument(
        fmt::format("{}: this store has tables of rows, of which no such file holds the optimizer's states; "
                    "save a checkpoint "
                    "(save_checkpoint), which does, or keep gradients dense (sparse_as_dense=True)",
                    verb));
  }
  require_no_step(verb);
  await_rounds(verb);
}

void Engine::require_states(const char* verb) {
  if (!has_optimizer_) {
    require_open(verb);
    throw std::logic_error(fmt::format(
        "{}: no optimizer is set, so servers keep no states; call set_optimizer on every worker first, as "
        "set_optimizer(\"sgd\", learning_rate=0.1), or save the states of the optimizer that updates the "
        "weights in the workers",
        verb));
  }
  require_still(verb);
}

/// No other rank has to come: a round needs this one's push, so that states stand still until it goes on.
void Engine::save_optimizer_states(const std::string& path, Dump dump) {
  require_states("save_optimizer_states");
  const Layout here = layout();
  const OptimizerHead head = optimizer_head(dump, optimizer_, here);
  // All ranks may write the file, at once: each writes its own, and one of them, whole, keeps the name.
  CheckpointWriter file(path, fmt::format(".worker-{}{}", rank(), kUnfinished));
  add_head(file, head);
  for (const HeldPart& part : held_parts()) {
    const auto number = same_tensor(head.keys, here, part.key);
    if (!number) continue;  // a bucket: no optimizer sees its sums
    Buffer state;
    read_state(part, Kept::kOptimizer, state);
    file.add({RecordKind::kOptimizerState, *number, part.offset, part.count}, state.bytes());
  }
  file.finish();
}

std::string Engine::load_optimizer_states(const std::string& path) {
  require_states("load_optimizer_states");
  std::unique_ptr<OptimizerFile> file;
  const auto opened = attempt("optimizer states are read", [&] {
    if (rank() != 0 && !in_order_) return std::string();  // where a library sums, each has them to itself
    file = std::make_unique<OptimizerFile>(path);
    require_own(*file, path);
    return file->head().dump == Dump::kStates ? std::string() : file->head().optimizer;
  });
  if (in_order_) {
    const FileSeal seal = file->seal();
    const auto own = fmt::format("{} bytes with the checksum {:08x}", seal.bytes, seal.digest);
    agree_on_settings(*messenger_, "files of load_optimizer_states", all_gather("optimizer states", own));
  }
  const std::string& optimizer = opened.front();
  if (!optimizer.empty()) set_optimizer(optimizer);
  attempt("optimizer states are restored", [&] {
    ++optimizer_loads_;
    if (file) restore(*file);
    return std::string();
  });
  return optimizer;
}

void Engine::require_own(const OptimizerFile& file, const std::string& path) const {
  require_same_keys({"load_optimizer_states", path}, file.head().keys, layout());
  const std::string saved = parse_optimizer(file.head().optimizer).name;
  if (file.head().dump == Dump::kStatesAndParameters || saved == parse_optimizer(optimizer_).name) return;
  throw std::invalid_argument(
      fmt::format("load_optimizer_states: {} holds the states of {}, and this job has set '{}'; call "
                  "set_optimizer with {} "
                  "first",
                  path, saved, optimizer_, saved));
}

void Engine::restore(const OptimizerFile& file) {
  const Layout here = layout();
  for (const HeldPart& part : held_parts()) {
    const auto number = same_tensor(file.head().keys, here, part.key);
    if (!number) continue;  // a bucket
    Buffer state = encode_state(file.state(*number, part.offset, part.count));
    // Above all rounds' steps: a late acknowledgement is none of a push.
    write_state(part, Kept::kOptimizer, state, kMaxSteps + optimizer_loads_);
  }
}

}  // namespace gradwire::kvstore
