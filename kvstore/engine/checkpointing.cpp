#include "kvstore/engine/checkpointing.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "kvstore/aggregate/updater.h"
#include "kvstore/checkpoint/checkpoint_source.h"
#include "kvstore/engine/compression_settings.h"
#include "kvstore/engine/engine_context.h"
#include "kvstore/engine/server_states.h"
#include "kvstore/wire/agreement.h"

namespace gradwire::kvstore {

using transport::Buffer;

void Checkpointing::save(const std::string& folder, std::string_view front_end) {
  context_.require_between_steps("save_checkpoint");
  const auto begun =
      context_.meeting.attempt("checkpoint begins", [&] {  // all ranks are here: no round is under way
        if (context_.rank() != 0) return std::string();
        std::filesystem::create_directories(folder);
        return std::to_string(next_generation(folder));
      });
  // Rank 0's, so that all files of a checkpoint have one number, also if ranks see the folder differently.
  const std::uint64_t generation = std::stoull(begun.front());
  const auto own_file = std::filesystem::path(folder) / file_name(generation, context_.rank());
  try {
    const auto seals = context_.meeting.attempt("checkpoint's files", [&] {
      const FileSeal seal = write_states(own_file.string(), front_end);
      return fmt::format("{} {}", seal.bytes, seal.digest);
    });
    context_.meeting.attempt("checkpoint's manifest", [&] {
      if (context_.rank() == 0) write_manifest_of(folder, generation, seals);
      return std::string();
    });
    // The job has failed. Other ranks may have gone on and made a checkpoint that needs this rank's file, so
    // it stays.
  } catch (const transport::TransportError&) {
    throw;
  } catch (const transport::TimeoutError&) {
    throw;
  } catch (const std::exception&) {  // on all ranks, so that none makes a checkpoint of it
    std::error_code ignored;
    std::filesystem::remove(own_file, ignored);
    throw;
  }
  // An exchange of its own: where an earlier one failed, every rank has removed its file, and nobody gives
  // the name. Where this one is reached, nobody removes a file of a checkpoint that is made.
  context_.meeting.attempt("checkpoint is made", [&] {
    if (context_.rank() == 0) {
      // All files are on the disk. From this rename on the folder holds the new checkpoint, and before it the
      // old one.
      give_name(manifest_path(folder));
      remove_other_generations(folder, generation);
    }
    return std::string();
  });
}

/// Writes this worker's own states, and its share of the servers': every so many-th part.
FileSeal Checkpointing::write_states(const std::string& path, std::string_view front_end) const {
  CheckpointWriter file(path);
  RoundThread& job = context_.rounds.job();
  // Where a host's workers sum first, only leaders have residuals.
  const bool pushes = std::ranges::binary_search(context_.rounds.contributors(), context_.rank());
  for (KeyId key = 0; pushes && key < context_.keys.size(); ++key) {
    for (const KeyRange& range : context_.keys.own_ranges_of(key)) {
      TensorState state;
      job.between_rounds(range.tensor, [&] { state = job.tensors().read(range.tensor); });
      file.add({RecordKind::kTensor, key, range.key_offset, range.count}, encode_state(state));
    }
  }
  const auto parts = servers_.parts();
  for (std::size_t i = context_.rank(); i < parts.size(); i += context_.workers()) {
    const Buffer state = servers_.read(parts[i], StateScope::kAll);
    file.add({RecordKind::kPartition, parts[i].key, parts[i].offset, parts[i].count}, state.bytes());
  }
  write_rows(file);
  file.add({RecordKind::kFrontEnd}, std::as_bytes(std::span(front_end)));
  return file.finish();
}

/// Every worker its own residuals; what servers hold of tables in turns, as it comes.
void Checkpointing::write_rows(CheckpointWriter& file) const {
  const auto specs = context_.tables();
  std::size_t turn = 0;
  for (std::uint64_t table = 0; table < specs.size(); ++table) {
    const RowShape shape = row_shape(specs[table]);
    const RowState own = context_.rows->worker_state(table);
    file.add({RecordKind::kWorkerRows, table, 0, shape.rows}, encode_state(own, shape).bytes());
    for (std::size_t owner = 0; owner < context_.rows->owners(table); ++owner) {
      if (turn++ % context_.workers() != context_.rank()) continue;
      context_.rows->read_server_state(table, owner, [&](const RowState& piece) {
        file.add({RecordKind::kServerRows, table, 0, shape.rows}, encode_state(piece, shape).bytes());
      });
    }
  }
}

/// Writes what makes a checkpoint of the ranks' files once it has its name. Until then the one before is what
/// the folder holds.
void Checkpointing::write_manifest_of(const std::string& folder, std::uint64_t generation,
                                      std::span<const std::string> seals) const {
  Manifest manifest{generation,
                    context_.workers(),
                    context_.rounds.contributors(),
                    context_.optimizer.text,
                    context_.keys.layout(),
                    context_.tables(),
                    {}};
  for (std::uint32_t rank = 0; rank < seals.size(); ++rank) {
    Manifest::File& file = manifest.files.emplace_back();
    file.name = file_name(generation, rank);
    std::istringstream(seals[rank]) >> file.seal.bytes >> file.seal.digest;
    const auto path = std::filesystem::path(folder) / file.name;
    std::error_code error;
    // Found now, and not when the checkpoint is needed: ranks may have folders of that name on disks of their
    // own.
    if (std::filesystem::file_size(path, error) != file.seal.bytes || error) {
      throw std::runtime_error(fmt::format(
          "save_checkpoint: {}, which worker {} has written, is not to be seen here; give a folder that "
          "all workers see, such as one on NFS",
          path.string(), rank));
    }
  }
  write_unfinished(manifest_path(folder), write_manifest(manifest));
}

// ------------------------------------------------------------------------------------- loading

Restored Checkpointing::load(const std::string& folder) {
  context_.require_between_steps("load_checkpoint");
  std::unique_ptr<CheckpointSource> source;
  const auto manifests = context_.meeting.attempt("checkpoint is opened", [&] {
    Manifest manifest = read_manifest_of(folder);
    const std::string text = write_manifest(manifest);
    source = std::make_unique<CheckpointSource>(folder, std::move(manifest), context_.keys.layout(),
                                                context_.tables());
    require_loadable(*source);
    // The manifest's checksum: all ranks must have read the same one.
    return text.substr(text.rfind('\t'));
  });
  agree_on_settings(*context_.messenger, "checkpoints in the folder of load_checkpoint", manifests);
  const std::uint32_t files = source->manifest().workers;
  // Each file once, by one rank, before anything has changed.
  context_.meeting.attempt("checkpoint is verified", [&] {
    for (std::uint32_t file = context_.rank(); file < files; file += context_.workers()) source->verify(file);
    return std::string();
  });
  if (!source->manifest().optimizer.empty()) {
    set_optimizer_(source->manifest().optimizer);
    // The first optimizer takes slots out of their buckets, so keys travel elsewhere now.
    source->set_layout(context_.keys.layout());
  }
  // On all ranks alike: pieces of one load have one number, whichever worker sends them.
  ++loads_;
  context_.meeting.attempt("checkpoint is restored", [&] {
    restore(*source);
    restore_rows(*source);
    return std::string();
  });
  // Values were restored at the job's servers. The host's server answers pulls here, and needs them too.
  if (context_.rounds.hierarchy() && context_.rounds.hierarchy()->leads()) {
    std::vector<KeyId> keys;
    for (KeyId key = 0; key < context_.keys.size(); ++key) {
      if (source->has_value(key)) keys.push_back(key);
    }
    context_.rounds.hierarchy()->fetch_first_values(keys);
  }
  note_without_value(*source);
  context_.barrier();
  return {files, context_.optimizer.text};
}

std::vector<std::uint64_t> Checkpointing::steps_begun() const {
  RoundThread& own = context_.rounds.own();
  std::vector<std::uint64_t> steps;
  own.between_rounds([&] { steps = own.tensors().steps(); });
  return steps;
}

/// Where servers summed, what they held was the last sum, which no checkpoint has.
void Checkpointing::note_without_value(const CheckpointSource& source) {
  const std::vector<std::uint64_t> steps = steps_begun();
  for (KeyId key = 0; key < context_.keys.size(); ++key) {
    if (source.held_sum(key) && !context_.keys.is_bucket(key)) keys_without_value_[key] = steps[key];
  }
  const std::size_t count = context_.tables().size();
  for (std::uint64_t table = 0; table < count; ++table) {
    if (source.held_sums_of_rows(table)) tables_without_value_[table] = context_.rows->rounds_begun(table);
  }
}

void Checkpointing::require_values() const {
  if (keys_without_value_.empty() && tables_without_value_.empty()) return;
  const auto refuse = [](const std::string& what) {
    throw std::invalid_argument(fmt::format(
        "set_optimizer: {} has no value that it could update: the checkpoint that was loaded is of sums, and "
        "holds none of its last round; push it once before, whose sum is then the weight, or save the "
        "checkpoint once an optimizer is set",
        what));
  };
  const std::vector<std::uint64_t> steps = steps_begun();
  for (const auto& [key, step] : keys_without_value_) {
    if (steps[key] == step) refuse(fmt::format("key '{}'", context_.keys.spec(key).name));
  }
  for (const auto& [table, step] : tables_without_value_) {
    if (context_.rows->rounds_begun(table) == step)
      refuse(fmt::format("table '{}'", context_.tables()[table].name));
  }
}

void Checkpointing::require_loadable(const CheckpointSource& source) const {
  if (context_.rounds.own().pushed().raw > 0 || (context_.rows && context_.rows->has_begun())) {
    throw std::invalid_argument(
        "load_checkpoint: this worker has pushed already; load before the first step, or into another store");
  }
  const Asker asker{"load_checkpoint", "the checkpoint"};
  require_same_keys(asker, source.manifest().layout, context_.keys.layout());
  require_same_tables(asker, source.manifest().tables, context_.tables());
  const std::string& saved = source.manifest().optimizer;
  if (context_.options.async && saved.empty()) {
    throw std::invalid_argument(
        "load_checkpoint: the checkpoint is of no optimizer, so its servers held sums and no weights, and "
        "this store applies each push to a weight; load it into a store that sums, as dist_sync");
  }
  if (!saved.empty()) compression_.require_weights("load_checkpoint");
  const std::string& set = context_.optimizer.text;
  const bool is_same =
      saved.empty() ? set.empty() : set.empty() || parse_optimizer(saved).name == parse_optimizer(set).name;
  if (is_same) return;
  throw std::invalid_argument(fmt::format(
      "load_checkpoint: the checkpoint is of {}, this job has set '{}'; set the same before, or none",
      saved.empty() ? std::string("no optimizer") : fmt::format("optimizer '{}'", saved), set));
}

/// Where a library sums, every rank has the server's states to itself.
void Checkpointing::restore(CheckpointSource& source) const {
  const auto pushing = context_.rounds.contributors();
  const auto own = std::ranges::find(pushing, context_.rank());
  const Contributor self{static_cast<std::uint32_t>(own - pushing.begin()),
                         static_cast<std::uint32_t>(pushing.size())};
  RoundThread& job = context_.rounds.job();
  for (KeyId key = 0; own != pushing.end() && key < context_.keys.size(); ++key) {
    for (const KeyRange& range : context_.keys.own_ranges_of(key)) {
      const TensorState state = source.tensor_state({key, range.key_offset, range.count}, self);
      job.between_rounds(range.tensor, [&] { job.tensors().write(range.tensor, state); });
    }
  }
  const auto parts = servers_.parts();
  const std::size_t stride = context_.in_order ? 1 : context_.workers();
  for (std::size_t i = context_.in_order ? 0 : context_.rank(); i < parts.size(); i += stride) {
    const PartitionState state = source.partition_state({parts[i].key, parts[i].offset, parts[i].count});
    servers_.write(parts[i], StateScope::kAll, encode_state(state));
  }
}

void Checkpointing::restore_rows(const CheckpointSource& source) const {
  const std::size_t count = context_.tables().size();
  for (std::uint64_t table = 0; table < count; ++table) {
    context_.rows->set_worker_state(table, source.worker_rows(table, {context_.rank(), context_.workers()}));
    for (std::size_t i = context_.rank(); i < source.server_pieces(table); i += context_.workers())
      context_.rows->write_server_state(table, loads_, source.server_piece(table, i));
  }
}

}  // namespace gradwire::kvstore
