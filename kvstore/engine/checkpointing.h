// Checkpointing saves what workers and servers keep from round to round, and restores it.
//
// Threading: collectives, on all ranks between the same steps. The folder is one that all ranks see.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::kvstore {

class CheckpointSource;
class CheckpointWriter;
class CompressionSettings;
class ServerStates;
struct EngineContext;
struct FileSeal;

/// What load() leaves to the front end that drives the Engine.
struct Restored {
  std::uint32_t workers = 0;  ///< that the checkpoint is of
  std::string optimizer;      ///< in force from now on, as in Engine::set_optimizer(); empty: none
};

class Checkpointing {
 public:
  /// set_optimizer: Engine's. All outlive this.
  Checkpointing(EngineContext& context, CompressionSettings& compression, ServerStates& servers,
                std::function<void(const std::string&)> set_optimizer)
      : context_(context),
        compression_(compression),
        servers_(servers),
        set_optimizer_(std::move(set_optimizer)) {}

  /// Writes what workers and servers keep from round to round: values, optimizer's states, residuals, agreed
  /// scales, numbers of rounds; and `front_end`, this worker's own, for read_front_end()
  /// (checkpoint_source.h). What was in the folder stays valid until all of it is on the disk. Throws
  /// std::runtime_error, the same on all ranks, where a file cannot be written, and std::logic_error during a
  /// step.
  void save(const std::string& folder, std::string_view front_end = {});
  /// Goes on from one, in a job that has declared the same keys, bound its slots and pushed nothing yet. It
  /// may have other numbers of workers and servers (checkpoint/FORMAT.md). Throws compress::DecodeError for
  /// what is damaged or no checkpoint, std::invalid_argument for one of other keys or another optimizer, or
  /// of one that set_optimizer() would not take, all before anything has changed, and std::runtime_error
  /// where a file cannot be read; the same on all ranks.
  Restored load(const std::string& folder);

  /// Throws std::invalid_argument where an optimizer that is set now would have nothing to update: the
  /// checkpoint has brought a key or a table no value, and it was not pushed since.
  void require_values() const;

 private:
  FileSeal write_states(const std::string& path, std::string_view front_end) const;
  void write_rows(CheckpointWriter& file) const;
  void write_manifest_of(const std::string& folder, std::uint64_t generation,
                         std::span<const std::string> seals) const;
  void require_loadable(const CheckpointSource& source) const;
  void restore(CheckpointSource& source) const;
  void restore_rows(const CheckpointSource& source) const;
  std::vector<std::uint64_t> steps_begun() const;
  void note_without_value(const CheckpointSource& source);

  EngineContext& context_;
  CompressionSettings& compression_;
  ServerStates& servers_;
  const std::function<void(const std::string&)> set_optimizer_;
  std::uint64_t loads_ = 0;  ///< checkpoints that were loaded
  /// Keys and tables of which a checkpoint has brought no value: the rounds that this worker had begun then.
  std::map<std::uint64_t, std::uint64_t> keys_without_value_, tables_without_value_;
};

}  // namespace gradwire::kvstore
