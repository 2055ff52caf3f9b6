#include "kvstore/checkpoint_source.h"

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

CheckpointSource::CheckpointSource(const std::filesystem::path& folder, Manifest manifest, Layout here)
    : manifest_(std::move(manifest)),
      here_(std::move(here)),
      partitions_(manifest_.layout.size()),
      tensors_(manifest_.workers, ByTensor(manifest_.layout.size())) {
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
  if (record.name.kind == RecordKind::kFrontEnd) return;
  const bool is_known = record.name.kind == RecordKind::kTensor || record.name.kind == RecordKind::kPartition;
  const std::uint64_t elements =
      record.name.tensor < manifest_.layout.size() ? manifest_.layout[record.name.tensor].spec.elements() : 0;
  if (!is_known || record.name.count == 0 || record.name.count > elements ||
      record.name.offset > elements - record.name.count)
    refuse(manifest_.files[file].name, "holds what its manifest does not know");
  auto& of_kind = record.name.kind == RecordKind::kTensor ? tensors_[file] : partitions_;
  of_kind[record.name.tensor].push_back({file, &record});
}

std::optional<CheckpointSource::Overlap> CheckpointSource::overlap(const RecordName& record,
                                                                   std::uint64_t offset,
                                                                   std::uint64_t count) {
  const std::uint64_t begin = std::max(record.offset, offset);
  const std::uint64_t end = std::min(record.offset + record.count, offset + count);
  if (begin >= end) return std::nullopt;
  return Overlap{begin - record.offset, begin - offset, end - begin};
}

/// By way of a piece, which says where in the tensor here the record's elements are.
std::optional<CheckpointSource::Overlap> CheckpointSource::overlap(const RecordName& record,
                                                                   const Piece& piece, const Range& range) {
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

/// Copies or adds what `run` says of `from` to elements `at` and on of `into`, which gets so many elements
/// first.
void CheckpointSource::put(std::vector<float>& into, std::size_t elements, const Overlap& run,
                           std::uint64_t at, std::span<const float> from, bool adds) {
  if (into.empty()) into.assign(elements, 0.0F);
  const auto source = from.subspan(run.in_record, run.count);
  const auto target = std::span(into).subspan(at, run.count);
  if (!adds) {
    std::ranges::copy(source, target.begin());
    return;
  }
  std::ranges::transform(source, target, target.begin(),
                         [](float more, float there) { return there + more; });
}

// ------------------------------------------------------------------------------------- servers' states

/// What is of a tensor alone: its value, its optimizer's state, its rounds.
void CheckpointSource::add_own(PartitionState& state, const Range& range, std::uint64_t saved) {
  const bool is_told = std::ranges::any_of(partitions_[saved],
                                           [&](const Held& held) { return !partition(held).told.empty(); });
  for (const Held& held : partitions_[saved]) {
    const auto common = overlap(held.record->name, range.offset, range.count);
    if (!common) continue;
    const PartitionState& from = partition(held);
    const std::uint64_t count = held.record->name.count;
    state.next_step = std::max(state.next_step, from.next_step);
    state.optimizer.steps = std::max(state.optimizer.steps, from.optimizer.steps);
    if (!from.value.empty()) put(state.value, range.count, *common, common->in_run, from.value, false);
    if (is_told) {
      const auto& told = from.told.empty() ? from.value : from.told;
      if (!told.empty()) put(state.told, range.count, *common, common->in_run, told, false);
    }
    const std::size_t kinds = from.optimizer.moments.size() / count;
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      put(state.optimizer.moments, kinds * range.count, *common, kind * range.count + common->in_run,
          std::span(from.optimizer.moments).subspan(kind * count, count), false);
    }
  }
}

PartitionState CheckpointSource::partition_state(const Range& range) {
  PartitionState state;
  if (const auto saved = same_tensor(manifest_.layout, here_, range.tensor)) add_own(state, range, *saved);
  for (const Piece& piece : residual_pieces(manifest_.layout, here_, range.tensor)) {
    for (const Held& held : partitions_[piece.from]) {
      const auto common = overlap(held.record->name, piece, range);
      if (!common || partition(held).residual.empty()) continue;
      put(state.residual, range.count, *common, common->in_run, partition(held).residual, piece.adds);
    }
  }
  return state;
}

bool CheckpointSource::has_value(std::uint64_t tensor) {
  const auto saved = same_tensor(manifest_.layout, here_, tensor);
  return saved && std::ranges::any_of(partitions_[*saved],
                                      [this](const Held& held) { return !partition(held).value.empty(); });
}

// ------------------------------------------------------------------------------------- workers' states

void CheckpointSource::add_residual_of(std::uint32_t rank, bool adds, const Range& range,
                                       const std::vector<Piece>& pieces, std::vector<float>& residual) {
  for (const Piece& piece : pieces) {
    for (const Held& held : tensors_[rank][piece.from]) {
      const auto common = overlap(held.record->name, piece, range);
      if (!common || tensor(held).residual.empty()) continue;
      put(residual, range.count, *common, common->in_run, tensor(held).residual, adds || piece.adds);
    }
  }
}

TensorState CheckpointSource::tensor_state(const Range& range, const Contributor& contributor) {
  TensorState state;
  const auto before = static_cast<std::uint32_t>(manifest_.contributors.size());
  const std::uint32_t like = manifest_.contributors[contributor.index < before ? contributor.index : 0];
  if (const auto saved = same_tensor(manifest_.layout, here_, range.tensor)) {
    for (const Held& held : tensors_[like][*saved]) {
      const RecordName& name = held.record->name;
      if (!overlap(name, range.offset, range.count)) continue;
      const TensorState& from = tensor(held);
      state.step = from.step;
      // Scales are means over those who push, of whole units.
      if (contributor.all != before || name.offset != range.offset || name.count != range.count) continue;
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

// ------------------------------------------------------------------------------------- front ends' states

Manifest read_manifest_of(const std::filesystem::path& folder) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 28;  // some million keys
  const auto path = manifest_path(folder);
  return read_manifest(read_text_file(path, kMostBytes), path);
}

FrontEnd read_front_end(const std::filesystem::path& folder, std::uint32_t rank) {
  const Manifest manifest = read_manifest_of(folder);
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
