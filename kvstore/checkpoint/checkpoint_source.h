// CheckpointSource reads a checkpoint for a job that may have another number of workers, servers or buckets,
// and may cut its tensors differently (FORMAT.md).
//
// Threading: one thread at a time.
// Failure: damaged or missing data is a compress::DecodeError naming the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/aggregate/partition_state.h"
#include "kvstore/checkpoint/checkpoint.h"
#include "kvstore/client/tensor_state.h"
#include "kvstore/rows/row_state.h"

namespace gradwire::kvstore {

/// Elements of a tensor here.
struct Range {
  std::uint64_t tensor = 0;
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};

/// The pushing worker that asks.
struct Contributor {
  std::uint32_t index = 0;  ///< among them, in rank order
  std::uint32_t all = 1;    ///< how many push
};

class CheckpointSource {
 public:
  /// Opens the files that the manifest names. Throws compress::DecodeError for others of the same names.
  CheckpointSource(const std::filesystem::path& folder, Manifest manifest, Layout here,
                   std::vector<KeySpec> tables = {});

  const Manifest& manifest() const { return manifest_; }
  /// Reads for another layout from now on: the job's slots have left their buckets.
  void set_layout(Layout here) { here_ = std::move(here); }
  /// Reads all of a worker's file.
  void verify(std::uint32_t rank) const { files_[rank]->verify(); }

  /// What a contributor goes on with.
  TensorState tensor_state(const Range& range, const Contributor& contributor);
  /// What a server goes on with.
  PartitionState partition_state(const Range& range);
  /// Whether the servers held a value of a tensor here: a first value, or a weight.
  bool has_value(std::uint64_t tensor);
  /// Whether servers held the sum of a round of the tensor in place of a value, which no checkpoint has.
  bool held_sum(std::uint64_t tensor) const;

  // Tables of rows, by their numbers here. Require that the checkpoint has them.

  /// What servers held of a table's rows, in as many pieces as were saved.
  std::size_t server_pieces(std::uint64_t table) const;
  RowState server_piece(std::uint64_t table, std::size_t index) const;
  /// As held_sum().
  bool held_sums_of_rows(std::uint64_t table) const;
  /// What a worker goes on with: all push rows, also where a host's workers sum first.
  RowState worker_rows(std::uint64_t table, const Contributor& worker) const;

 private:
  /// One record that holds a run of a tensor.
  struct Held {
    std::uint32_t file = 0;  ///< rank of the worker that wrote it
    const CheckpointReader::Record* record = nullptr;
  };
  using ByTensor = std::vector<std::vector<Held>>;  ///< each list ordered by offset

  static std::optional<Overlap> overlap_by(const RecordName& record, const Piece& piece, const Range& range);

  void take_up(std::uint32_t file, const CheckpointReader::Record& record);
  void take_up_rows(std::uint32_t file, const CheckpointReader::Record& record);
  std::size_t saved_table(std::uint64_t table) const;
  RowState rows(const Held& held, std::uint64_t table) const;
  const PartitionState& partition(const Held& held);
  const TensorState& tensor(const Held& held);
  std::uint64_t rounds_begun(std::uint64_t saved) const;
  void add_own(PartitionState& state, const Range& range, std::uint64_t saved);
  void add_residual_of(std::uint32_t rank, bool adds, const Range& range, const std::vector<Piece>& pieces,
                       std::vector<float>& residual);
  template <typename Element>
  static void put(std::vector<Element>& into, std::size_t elements, const Overlap& run,
                  const std::vector<Element>& from, bool adds);

  const Manifest manifest_;
  Layout here_;
  const std::vector<KeySpec> tables_here_;
  std::vector<std::unique_ptr<CheckpointReader>> files_;  ///< by rank
  ByTensor partitions_;
  std::vector<ByTensor> tensors_;      ///< by rank
  ByTensor server_rows_;               ///< by table
  std::vector<ByTensor> worker_rows_;  ///< by rank, by table
  /// The record that was read last; neighbours are often of the same.
  std::pair<const CheckpointReader::Record*, PartitionState> last_partition_{};
  std::pair<const CheckpointReader::Record*, TensorState> last_tensor_{};
};

/// What a worker's front end gave to Engine::save_checkpoint().
struct FrontEnd {
  std::uint32_t workers = 0;   ///< that the checkpoint is of
  std::uint32_t given_by = 0;  ///< the rank asked for; or, where there was none, another in its place
  std::string bytes;
};

/// Reads it, from a checkpoint that nobody need have loaded. Throws as CheckpointReader does.
FrontEnd read_front_end(const std::filesystem::path& folder, std::uint32_t rank);

/// Reads a folder's manifest. Throws likewise.
Manifest read_manifest_of(const std::filesystem::path& folder);

}  // namespace gradwire::kvstore
