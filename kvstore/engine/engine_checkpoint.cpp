// Engine: what workers and servers keep from round to round, saved and gone on from.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "compress/codec.h"
#include "kvstore/aggregate/partition_state.h"
#include "kvstore/aggregate/updater.h"
#include "kvstore/checkpoint/checkpoint_source.h"
#include "kvstore/client/round_thread.h"
#include "kvstore/engine/engine.h"
#include "kvstore/engine/engine_slots.h"
#include "kvstore/placement/hierarchy.h"
#include "kvstore/rows/sparse_rows.h"
#include "kvstore/wire/agreement.h"

namespace gradwire::kvstore {
namespace {

using transport::Buffer;

/// How work ended, in the blob that tells other ranks.
enum class Outcome : char { kDone = '+', kBadBytes = 'd', kMisuse = 'i', kOther = 'r' };

std::string blob_of(Outcome outcome, const std::string& text) { return static_cast<char>(outcome) + text; }

void rethrow(std::uint32_t rank, const std::string& blob) {
  const auto outcome = static_cast<Outcome>(blob.front());
  const std::string text = fmt::format("worker {}: {}", rank, blob.substr(1));
  if (outcome == Outcome::kBadBytes) throw compress::DecodeError(text);
  if (outcome == Outcome::kMisuse) throw std::invalid_argument(text);
  if (outcome != Outcome::kDone) throw std::runtime_error(text);
}

}  // namespace

/// Does work on all ranks and returns what it gave, in rank order; where it fails on any, all throw what the
/// first of those did. That the job has failed is told at once: nobody could be asked any more.
std::vector<std::string> Engine::attempt(const char* what, const std::function<std::string()>& work) {
  std::string blob;
  try {
    blob = blob_of(Outcome::kDone, work());
  } catch (const transport::TransportError&) {
    throw;
  } catch (const transport::TimeoutError&) {
    throw;
  } catch (const compress::DecodeError& error) {
    blob = blob_of(Outcome::kBadBytes, error.what());
  } catch (const std::invalid_argument& error) {
    blob = blob_of(Outcome::kMisuse, error.what());
  } catch (const std::exception& error) {
    blob = blob_of(Outcome::kOther, error.what());
  }
  auto blobs = all_gather(what, blob);
  for (std::uint32_t rank = 0; rank < blobs.size(); ++rank) rethrow(rank, blobs[rank]);
  for (std::string& each : blobs) each.erase(0, 1);
  return blobs;
}

void Engine::require_between_steps(const char* verb) {
  require_open(verb);
  require_no_step(verb);
  if (sparse_) sparse_->settle(options_.slow_abort);
  await_rounds(verb);
}

std::vector<std::uint32_t> Engine::contributors() const {
  if (hierarchy_) return hierarchy_->leaders();
  std::vector<std::uint32_t> ranks(num_workers());
  std::iota(ranks.begin(), ranks.end(), 0U);
  return ranks;
}

Layout Engine::layout() const {
  const std::shared_lock lock(keys_mutex_);
  Layout layout(keys_.size());
  for (KeyId key = 0; key < keys_.size(); ++key) {
    const Home home = home_of(key);
    layout[key] = {keys_[key], {}, {home.key, home.offset}};
  }
  for (const auto& [members, bucket] : together_) layout[bucket.key].members = members;
  return layout;
}

std::vector<Engine::HeldPart> Engine::held_parts() {
  std::vector<HeldPart> held;
  for (KeyId key = 0; key < keys_.size(); ++key) {
    for (const Stretch& stretch : stretches({key, 0}, elements_of(key))) {
      std::vector<Part> parts;
      thread_
          ->between_rounds({stretch.tensor},
                           [&] {
                             for (const TensorPart& part : thread_->tensors()[stretch.tensor].parts)
                               parts.push_back(part.part);
                           })
          .wait();
      for (std::size_t p = 0; p < parts.size(); ++p)
        held.push_back(
            {stretch.tensor, p, key, stretch.key_offset + parts[p].offset, parts[p].count, parts[p].offset});
    }
  }
  return held;
}

/// What a server keeps of a part, or of it the optimizer's alone.
void Engine::read_state(const HeldPart& part, Kept kept, Buffer& state) {
  Operation read = state_operation(Operation::Verb::kReadState, kept, part.part, state);
  const Ticket done = read.done;
  thread_->submit(part.tensor, std::move(read));
  done.wait();
}

void Engine::write_state(const HeldPart& part, Kept kept, Buffer& state, std::uint64_t number) {
  Operation write = state_operation(Operation::Verb::kWriteState, kept, part.part, state, number);
  const Ticket done = write.done;
  thread_->submit(part.tensor, std::move(write));
  done.wait();
}

// ------------------------------------------------------------------------------------- saving

void Engine::save_checkpoint(const std::string& folder, std::string_view front_end) {
  require_between_steps("save_checkpoint");
  const auto begun = attempt("checkpoint begins", [&] {  // all ranks are here: no round is under way
    if (rank() != 0) return std::string();
    std::filesystem::create_directories(folder);
    return std::to_string(next_generation(folder));
  });
  const std::uint64_t generation = std::stoull(begun.front());
  const auto own_file = std::filesystem::path(folder) / file_name(generation, rank());
  try {
    const auto seals = attempt("checkpoint's files", [&] {
      const FileSeal seal = write_states(own_file.string(), front_end);
      return fmt::format("{} {}", seal.bytes, seal.digest);
    });
    attempt("checkpoint's manifest", [&] {
      if (rank() == 0) write_manifest_of(folder, generation, seals);
      return std::string();
    });
  } catch (const transport::TransportError&) {
    throw;
  } catch (const transport::TimeoutError&) {
    throw;
  } catch (const std::exception&) {  // on all ranks, so that none makes a checkpoint of it
    std::error_code ignored;
    std::filesystem::remove(own_file, ignored);
    throw;
  }
  attempt("checkpoint is made", [&] {
    if (rank() == 0) {
      give_name(manifest_path(folder));
      remove_other_generations(folder, generation);
    }
    return std::string();
  });
}

/// Writes this worker's own states, and its share of the servers': every so many-th part.
FileSeal Engine::write_states(const std::string& path, std::string_view front_end) {
  CheckpointWriter file(path);
  const auto pushing = contributors();
  for (KeyId key = 0; std::ranges::binary_search(pushing, rank()) && key < keys_.size(); ++key) {
    for (const Stretch& stretch : stretches({key, 0}, elements_of(key))) {
      TensorState state;
      thread_->between_rounds({stretch.tensor}, [&] { state = thread_->tensors().read(stretch.tensor); })
          .wait();
      file.add({RecordKind::kTensor, key, stretch.key_offset, stretch.count}, encode_state(state));
    }
  }
  const auto parts = held_parts();
  for (std::size_t i = rank(); i < parts.size(); i += num_workers()) {
    Buffer state;
    read_state(parts[i], Kept::kAll, state);
    file.add({RecordKind::kPartition, parts[i].key, parts[i].offset, parts[i].count}, state.bytes());
  }
  write_rows(file);
  file.add({RecordKind::kFrontEnd}, std::as_bytes(std::span(front_end)));
  return file.finish();
}

std::vector<KeySpec> Engine::tables() const { return sparse_ ? sparse_->tables() : std::vector<KeySpec>(); }

/// Every worker its own residuals; what servers hold of tables in turns, as it comes.
void Engine::write_rows(CheckpointWriter& file) {
  const auto specs = tables();
  std::size_t turn = 0;
  for (std::uint64_t table = 0; table < specs.size(); ++table) {
    const RowShape shape = row_shape(specs[table]);
    const RowState own = sparse_->worker_state(table);
    file.add({RecordKind::kWorkerRows, table, 0, shape.rows}, encode_state(own, shape).bytes());
    for (std::size_t owner = 0; owner < sparse_->owners(table); ++owner) {
      if (turn++ % num_workers() != rank()) continue;
      sparse_->read_server_state(table, owner, [&](const RowState& piece) {
        file.add({RecordKind::kServerRows, table, 0, shape.rows}, encode_state(piece, shape).bytes());
      });
    }
  }
}

/// Writes what makes a checkpoint of the ranks' files once it has its name. Until then the one before is what
/// the folder holds.
void Engine::write_manifest_of(const std::string& folder, std::uint64_t generation,
                               std::span<const std::string> seals) {
  Manifest manifest{generation, num_workers(), contributors(), optimizer_, layout(), tables(), {}};
  for (std::uint32_t rank = 0; rank < seals.size(); ++rank) {
    Manifest::File& file = manifest.files.emplace_back();
    file.name = file_name(generation, rank);
    std::istringstream(seals[rank]) >> file.seal.bytes >> file.seal.digest;
    const auto path = std::filesystem::path(folder) / file.name;
    std::error_code error;
    if (std::filesystem::file_size(path, error) != file.seal.bytes || error) {
      throw std::runtime_error(fmt::format(
          "save_checkpoint: {}, which worker {} has written, is not to be seen here; give a folder that "
          "all workers see, such as one on NFS",
          path.string(), rank));
    }
  }
  write_unfinished(manifest_path(folder), write_manifest(manifest));
}

// ------------------------------------------------------------------------------------- servers that end

/// Each part's by one of those who push: whose residual it adds to does not matter to the sum.
/// Reads all before it writes any: where a rank cannot read, no rank has drawn what servers still owe.
void Engine::draw_residuals() {
  require_between_steps("draw_residuals");
  Writes writes;
  attempt("residuals are drawn", [&] {
    const auto pushing = contributors();
    const auto parts = held_parts();
    for (std::size_t turn = 0; turn < parts.size(); ++turn) {
      if (pushing[turn % pushing.size()] == rank()) draw_residual(parts[turn], writes);
    }
    const std::size_t count = tables().size();
    for (std::uint64_t table = 0, turn = 0; table < count; ++table) {
      std::vector<std::size_t> owners;
      for (std::size_t owner = 0; owner < sparse_->owners(table); ++owner) {
        if (turn++ % num_workers() == rank()) owners.push_back(owner);
      }
      draw_residual_of_rows(table, owners, writes);
    }
    return std::string();
  });
  for (const auto& write : writes) write();
}

std::vector<float> Engine::residual_of(const HeldPart& part) {
  Buffer bytes;
  read_state(part, Kept::kAll, bytes);
  return decode_partition_state(bytes.bytes(), part.count).residual;
}

void Engine::draw_residual(const HeldPart& part, Writes& writes) {
  const std::vector<float> theirs = residual_of(part);
  if (theirs.empty()) return;
  std::vector<float> own(part.count);
  thread_
      ->between_rounds({part.tensor},
                       [&] { thread_->residuals().read(part.tensor, part.tensor_offset, own); })
      .wait();
  for (std::size_t i = 0; i < own.size(); ++i) own[i] += theirs[i];
  writes.emplace_back([this, part, own = std::move(own)] {
    thread_
        ->between_rounds({part.tensor},
                         [&] { thread_->residuals().write(part.tensor, part.tensor_offset, own); })
        .wait();
  });
}

void Engine::draw_residual_of_rows(std::uint64_t table, std::span<const std::size_t> owners, Writes& writes) {
  if (owners.empty()) return;
  Rows residual = sparse_->residual(table);
  for (const std::size_t owner : owners) append_residual_of_rows(table, owner, residual);
  writes.emplace_back([this, table, residual = std::move(residual)] {
    const std::vector<std::int64_t> ids(residual.ids.begin(), residual.ids.end());
    sparse_->set_residual(table, ids, residual.values);
  });
}

void Engine::append_residual_of_rows(std::uint64_t table, std::size_t owner, Rows& rows) {
  sparse_->read_server_state(table, owner, [&](const RowState& piece) {
    rows.ids.insert(rows.ids.end(), piece.residuals.ids.begin(), piece.residuals.ids.end());
    rows.values.insert(rows.values.end(), piece.residuals.values.begin(), piece.residuals.values.end());
  });
}

std::vector<float> Engine::server_residual(KeyId key) {
  require_open("server_residual");
  std::vector<float> residual;
  for (const HeldPart& part : held_parts()) {
    if (part.key != key) continue;
    const std::vector<float> theirs = residual_of(part);
    if (theirs.empty()) continue;
    residual.resize(elements_of(key));
    std::ranges::copy(theirs, residual.begin() + static_cast<std::ptrdiff_t>(part.offset));
  }
  return residual;
}

Rows Engine::server_residual_of_rows(std::uint64_t table) {
  Rows rows;
  for (std::size_t owner = 0; owner < sparse().owners(table); ++owner)
    append_residual_of_rows(table, owner, rows);
  return rows;
}

// ------------------------------------------------------------------------------------- loading

Restored Engine::load_checkpoint(const std::string& folder) {
  require_between_steps("load_checkpoint");
  std::unique_ptr<CheckpointSource> source;
  const auto manifests = attempt("checkpoint is opened", [&] {
    Manifest manifest = read_manifest_of(folder);
    const std::string text = write_manifest(manifest);
    source = std::make_unique<CheckpointSource>(folder, std::move(manifest), layout(), tables());
    require_loadable(*source);
    return text.substr(text.rfind('\t'));
  });
  agree_on_settings(*messenger_, "checkpoints in the folder of load_checkpoint", manifests);
  const std::uint32_t files = source->manifest().workers;
  attempt("checkpoint is verified", [&] {
    for (std::uint32_t file = rank(); file < files; file += num_workers()) source->verify(file);
    return std::string();
  });
  if (!source->manifest().optimizer.empty()) {
    set_optimizer(source->manifest().optimizer);
    source->set_layout(layout());
  }
  ++loads_;
  attempt("checkpoint is restored", [&] {
    restore(*source);
    restore_rows(*source);
    return std::string();
  });
  if (hierarchy_ && hierarchy_->leads()) {
    std::vector<KeyId> keys;
    for (KeyId key = 0; key < keys_.size(); ++key) {
      if (source->has_value(key)) keys.push_back(key);
    }
    hierarchy_->fetch_first_values(keys);
  }
  note_without_value(*source);
  barrier();
  return {files, optimizer_};
}

std::vector<std::uint64_t> Engine::steps_begun() const {
  std::vector<std::uint64_t> steps;
  rounds().between_rounds({}, [&] { steps = rounds().tensors().steps(); }).wait();
  return steps;
}

/// Where servers summed, what they held was the last sum, which no checkpoint has.
void Engine::note_without_value(const CheckpointSource& source) {
  const std::vector<std::uint64_t> steps = steps_begun();
  for (KeyId key = 0; key < keys_.size(); ++key) {
    const auto is_bucket = [key](const auto& row) { return row.second.key == key; };
    if (source.held_sum(key) && std::ranges::none_of(together_, is_bucket))
      keys_without_value_[key] = steps[key];
  }
  const std::size_t count = tables().size();
  for (std::uint64_t table = 0; table < count; ++table) {
    if (source.held_sums_of_rows(table)) tables_without_value_[table] = sparse_->rounds_begun(table);
  }
}

/// An optimizer that is set before those keys are pushed would have nothing to update.
void Engine::require_values() {
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
    if (steps[key] == step) refuse(fmt::format("key '{}'", keys_[key].name));
  }
  for (const auto& [table, step] : tables_without_value_) {
    if (sparse_->rounds_begun(table) == step) refuse(fmt::format("table '{}'", tables()[table].name));
  }
}

void Engine::require_loadable(const CheckpointSource& source) const {
  if (rounds().pushed().raw > 0 || (sparse_ && sparse_->has_begun())) {
    throw std::invalid_argument(
        "load_checkpoint: this worker has pushed already; load before the first step, or into another store");
  }
  const Asker asker{"load_checkpoint", "the checkpoint"};
  require_same_keys(asker, source.manifest().layout, layout());
  require_same_tables(asker, source.manifest().tables, tables());
  const std::string& saved = source.manifest().optimizer;
  if (options_.at_once && saved.empty()) {
    throw std::invalid_argument(
        "load_checkpoint: the checkpoint is of no optimizer, so its servers held sums and no weights, and "
        "this store applies each push to a weight; load it into a store that sums, as dist_sync");
  }
  if (!saved.empty()) require_weights("load_checkpoint");
  const bool is_same =
      saved.empty() ? optimizer_.empty()
                    : optimizer_.empty() || parse_optimizer(saved).name == parse_optimizer(optimizer_).name;
  if (is_same) return;
  throw std::invalid_argument(fmt::format(
      "load_checkpoint: the checkpoint is of {}, this job has set '{}'; set the same before, or none",
      saved.empty() ? std::string("no optimizer") : fmt::format("optimizer '{}'", saved), optimizer_));
}

/// Where a library sums, every rank has the server's states to itself.
void Engine::restore(CheckpointSource& source) {
  const auto pushing = contributors();
  const auto own = std::ranges::find(pushing, rank());
  const Contributor self{static_cast<std::uint32_t>(own - pushing.begin()),
                         static_cast<std::uint32_t>(pushing.size())};
  for (KeyId key = 0; own != pushing.end() && key < keys_.size(); ++key) {
    for (const Stretch& stretch : stretches({key, 0}, elements_of(key))) {
      const TensorState state = source.tensor_state({key, stretch.key_offset, stretch.count}, self);
      thread_->between_rounds({stretch.tensor}, [&] { thread_->tensors().write(stretch.tensor, state); })
          .wait();
    }
  }
  const auto parts = held_parts();
  const std::size_t stride = in_order_ ? 1 : num_workers();
  for (std::size_t i = in_order_ ? 0 : rank(); i < parts.size(); i += stride) {
    const PartitionState state = source.partition_state({parts[i].key, parts[i].offset, parts[i].count});
    Buffer bytes = encode_state(state);
    write_state(parts[i], Kept::kAll, bytes);
  }
}

void Engine::restore_rows(const CheckpointSource& source) {
  const std::size_t count = tables().size();
  for (std::uint64_t table = 0; table < count; ++table) {
    sparse_->set_worker_state(table, source.worker_rows(table, {rank(), num_workers()}));
    for (std::size_t i = rank(); i < source.server_pieces(table); i += num_workers())
      sparse_->write_server_state(table, loads_, source.server_piece(table, i));
  }
}

}  // namespace gradwire::kvstore
