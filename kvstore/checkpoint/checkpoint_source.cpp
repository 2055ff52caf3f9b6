#include "kvstore/checkpoint/checkpoint_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "compress/codec.h"

namespace gradwire::kvstore {
namespace {

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw compress::DecodeError(
      fmt::format("checkpoint: {} {}; take another checkpoint, or a copy of this one", file, why));
}

}  // namespace

CheckpointSource::CheckpointSource(const std::filesystem::path& folder, Manifest manifest, Layout here,
                                   std::vector<KeySpec> tables)
    : manifest_(std::move(manifest)),
      here_(std::move(here)),
      tables_here_(std::move(tables)),
      partitions_(manifest_.layout.size()),
      tensors_(manifest_.workers, ByTensor(manifest_.layout.size())),
      server_rows_(manifest_.tables.size()),
      worker_rows_(manifest_.workers, ByTensor(manifest_.tables.size())) {
  for (const Manifest::File& file : manifest_.files) {
    auto reader = std::make_unique<CheckpointReader>(folder / file.name);
    if (reader->seal() != file.seal) refuse((folder / file.name).string(), "is of another checkpoint");
    files_.push_back(std::move(reader));
    for (const auto& record : files_.back()->records())
      take_up(static_cast<std::uint32_t>(files_.size() - 1), record);
  }
  const auto by_offset = [](const Held& held) { return held.record->name.offset; };
  for (auto& records : partitions_) std::ranges::sort(records, {}, by_offset);
}

void CheckpointSource::take_up(std::uint32_t file, const CheckpointReader::Record& record) {
  // Read by read_front_end(), which does not need the rest.
  if (record.name.kind == RecordKind::kFrontEnd) return;
  if (record.name.kind == RecordKind::kWorkerRows || record.name.kind == RecordKind::kServerRows)
    return take_up_rows(file, record);
  const bool is_known = record.name.kind == RecordKind::kTensor || record.name.kind == RecordKind::kPartition;
  const std::uint64_t elements =
      record.name.tensor < manifest_.layout.size() ? manifest_.layout[record.name.tensor].spec.elements() : 0;
  // Subtracted and not added below: the numbers of a file may be any.
  if (!is_known || record.name.count == 0 || record.name.count > elements ||
      record.name.offset > elements - record.name.count)
    refuse(manifest_.files[file].name, "holds what its manifest does not know");
  auto& of_kind = record.name.kind == RecordKind::kTensor ? tensors_[file] : partitions_;
  of_kind[record.name.tensor].push_back({file, &record});
}

void CheckpointSource::take_up_rows(std::uint32_t file, const CheckpointReader::Record& record) {
  if (record.name.tensor >= manifest_.tables.size())
    refuse(manifest_.files[file].name, "holds rows of a table that its manifest does not know");
  auto& of_kind = record.name.kind == RecordKind::kWorkerRows ? worker_rows_[file] : server_rows_;
  of_kind[record.name.tensor].push_back({file, &record});
}

/// By way of a piece, which says where in the tensor here the record's elements are.
std::optional<Overlap> CheckpointSource::overlap_by(const RecordName& record, const Piece& piece,
                                                    const Range& range) {
  const auto in_piece = overlap(record, piece.from_offset, piece.count);
  if (!in_piece) return std::nullopt;
  const RecordName here{record.kind, range.tensor, piece.offset + in_piece->in_run, in_piece->count};
  auto common = overlap(here, range.offset, range.count);
  if (common) common->in_record += in_piece->in_record;
  return common;
}

const PartitionState& CheckpointSource::partition(const Held& held) {
  if (last_partition_.first != held.record) {
    const auto bytes = files_[held.file]->read(*held.record);
    last_partition_ = {held.record, decode_partition_state(bytes, held.record->name.count)};
  }
  return last_partition_.second;
}

const TensorState& CheckpointSource::tensor(const Held& held) {
  if (last_tensor_.first != held.record) {
    const auto bytes = files_[held.file]->read(*held.record);
    last_tensor_ = {held.record, decode_tensor_state(bytes, held.record->name.count)};
  }
  return last_tensor_.second;
}

/// Copies or adds what `run` says of `from` to `into`, which gets so many elements first.
template <typename Element>
void CheckpointSource::put(std::vector<Element>& into, std::size_t elements, const Overlap& run,
                           const std::vector<Element>& from, bool adds) {
  if (into.empty()) into.assign(elements, 0);
  const auto source = std::span(from).subspan(run.in_record, run.count);
  const auto target = std::span(into).subspan(run.in_run, run.count);
  if (!adds) {
    std::ranges::copy(source, target.begin());
    return;
  }
  std::ranges::transform(source, target, target.begin(),
                         [](Element more, Element there) { return there + more; });
}

// ------------------------------------------------------------------------------------- servers' states

/// What is of a tensor alone: its value, its optimizer's state, its rounds.
void CheckpointSource::add_own(PartitionState& state, const Range& range, std::uint64_t saved) {
  // A partition here may be made of several that were saved. If workers hold one of them, all of it has to
  // say what they hold.
  const bool shows_held = std::ranges::any_of(partitions_[saved], [&](const Held& held) {
    return overlap(held.record->name, range.offset, range.count) && !partition(held).held_by_workers.empty();
  });
  for (const Held& held : partitions_[saved]) {
    const auto common = overlap(held.record->name, range.offset, range.count);
    if (!common) continue;
    const PartitionState& from = partition(held);
    // Pieces of one tensor may come from partitions that have been through different numbers of rounds.
    state.next_step = std::max(state.next_step, from.next_step);
    take_over(state.optimizer, range.count, *common, from.optimizer, held.record->name.count);
    if (!from.value.empty()) put(state.value, range.count, *common, from.value, false);
    if (!from.first64.empty()) put(state.first64, range.count, *common, from.first64, false);
    if (shows_held) {
      const auto& weight = from.held_by_workers.empty() ? from.value : from.held_by_workers;
      if (!weight.empty()) put(state.held_by_workers, range.count, *common, weight, false);
    }
  }
}

PartitionState CheckpointSource::partition_state(const Range& range) {
  PartitionState state;
  if (const auto saved = same_tensor(manifest_.layout, here_, range.tensor)) add_own(state, range, *saved);
  for (const Piece& piece : residual_pieces(manifest_.layout, here_, range.tensor)) {
    for (const Held& held : partitions_[piece.from]) {
      const auto common = overlap_by(held.record->name, piece, range);
      if (!common || partition(held).residual.empty()) continue;
      put(state.residual, range.count, *common, partition(held).residual, piece.adds);
    }
  }
  return state;
}

bool CheckpointSource::has_value(std::uint64_t tensor) {
  const auto saved = same_tensor(manifest_.layout, here_, tensor);
  return saved && std::ranges::any_of(partitions_[*saved],
                                      [this](const Held& held) { return !partition(held).value.empty(); });
}

bool CheckpointSource::held_sum(std::uint64_t tensor) const {
  const auto saved = same_tensor(manifest_.layout, here_, tensor);
  // With an optimizer servers hold weights, and before the first round a first value. Both are in the
  // checkpoint.
  return saved && manifest_.optimizer.empty() && rounds_begun(*saved) > 0;
}

// ------------------------------------------------------------------------------------- workers' states

void CheckpointSource::add_residual_of(std::uint32_t rank, bool adds, const Range& range,
                                       const std::vector<Piece>& pieces, std::vector<float>& residual) {
  for (const Piece& piece : pieces) {
    for (const Held& held : tensors_[rank][piece.from]) {
      const auto common = overlap_by(held.record->name, piece, range);
      if (!common || tensor(held).residual.empty()) continue;
      put(residual, range.count, *common, tensor(held).residual, adds || piece.adds);
    }
  }
}

/// The most that any worker had begun: where each went its own way, all go on from there.
std::uint64_t CheckpointSource::rounds_begun(std::uint64_t saved) const {
  std::uint64_t most = 0;
  for (const ByTensor& of_worker : tensors_) {
    // The head alone: behind it lies the residual, which may be as large as the model.
    for (const Held& held : of_worker[saved])
      most = std::max(most, step_of(files_[held.file]->read_head(*held.record, kStepBytes)));
  }
  return most;
}

TensorState CheckpointSource::tensor_state(const Range& range, const Contributor& contributor) {
  TensorState state;
  const auto before = static_cast<std::uint32_t>(manifest_.contributors.size());
  // A worker that is new reads scales from the first one's file: they are the same on all ranks.
  const std::uint32_t like = manifest_.contributors[contributor.index < before ? contributor.index : 0];
  if (const auto saved = same_tensor(manifest_.layout, here_, range.tensor)) {
    state.step = rounds_begun(*saved);
    for (const Held& held : tensors_[like][*saved]) {
      const RecordName& name = held.record->name;
      // Scales are means over those who push, of whole units.
      if (contributor.all != before || name.offset != range.offset || name.count != range.count) continue;
      const TensorState& from = tensor(held);
      state.scales = from.scales;
      state.compression = from.compression;
    }
  }
  const auto pieces = residual_pieces(manifest_.layout, here_, range.tensor);
  bool adds = false;
  for (const std::uint32_t index : inherited(contributor.index, contributor.all, before)) {
    add_residual_of(manifest_.contributors[index], std::exchange(adds, true), range, pieces, state.residual);
  }
  return state;
}

// ------------------------------------------------------------------------------------- tables of rows

std::size_t CheckpointSource::saved_table(std::uint64_t table) const {
  const auto found = std::ranges::find(manifest_.tables, tables_here_[table].name, &KeySpec::name);
  return static_cast<std::size_t>(found - manifest_.tables.begin());
}

RowState CheckpointSource::rows(const Held& held, std::uint64_t table) const {
  return decode_row_state(files_[held.file]->read(*held.record), row_shape(tables_here_[table]));
}

std::size_t CheckpointSource::server_pieces(std::uint64_t table) const {
  return server_rows_[saved_table(table)].size();
}

RowState CheckpointSource::server_piece(std::uint64_t table, std::size_t index) const {
  return rows(server_rows_[saved_table(table)][index], table);
}

bool CheckpointSource::held_sums_of_rows(std::uint64_t table) const {
  return manifest_.optimizer.empty() && server_pieces(table) > 0 && server_piece(table, 0).next_step > 0;
}

RowState CheckpointSource::worker_rows(std::uint64_t table, const Contributor& worker) const {
  const std::size_t saved = saved_table(table);
  RowState state;
  std::vector<std::int64_t> ids;
  std::vector<float> residuals;
  const auto ranks = inherited(worker.index, worker.all, manifest_.workers);
  for (const std::uint32_t rank : ranks) {
    for (const Held& held : worker_rows_[rank][saved]) {
      const RowState theirs = rows(held, table);
      ids.insert(ids.end(), theirs.residuals.ids.begin(), theirs.residuals.ids.end());
      residuals.insert(residuals.end(), theirs.residuals.values.begin(), theirs.residuals.values.end());
    }
  }
  // Several workers that are gone may have had a residual of the same row.
  state.residuals = sum_duplicates(ids, residuals, row_shape(tables_here_[table]));
  // All servers have seen all rounds.
  if (!server_rows_[saved].empty()) state.next_step = rows(server_rows_[saved].front(), table).next_step;
  return state;
}

// ------------------------------------------------------------------------------------- front ends' states

Manifest read_manifest_of(const std::filesystem::path& folder) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 28;  // some million keys
  const auto path = manifest_path(folder);
  return read_manifest(read_text_file(path, kMostBytes), path);
}

FrontEnd read_front_end(const std::filesystem::path& folder, std::uint32_t rank) {
  const Manifest manifest = read_manifest_of(folder);
  // A rank that the saved job did not have gets another's, so that a larger job finds something for all.
  FrontEnd found{manifest.workers, rank % manifest.workers, {}};
  const Manifest::File& file = manifest.files[found.given_by];
  const CheckpointReader reader(folder / file.name);
  if (reader.seal() != file.seal) refuse((folder / file.name).string(), "is of another checkpoint");
  for (const auto& record : reader.records()) {
    if (record.name.kind != RecordKind::kFrontEnd) continue;
    const auto bytes = reader.read(record);
    found.bytes.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return found;
  }
  refuse((folder / file.name).string(), "lacks what the front end gave");
}

}  // namespace gradwire::kvstore
