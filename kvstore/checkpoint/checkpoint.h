// A checkpoint: a folder with a manifest and the files that it names. This header says which file holds what
// of which tensor, and where it goes in a job of another shape (FORMAT.md).
//
// Threading: values and pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvstore/aggregate/updater.h"
#include "kvstore/checkpoint/checkpoint_file.h"
#include "kvstore/wire/key.h"

namespace gradwire::kvstore {

/// Where a key's elements travel: in a tensor of a layout, from an offset on.
struct Place {
  std::uint64_t tensor = 0;
  std::uint64_t offset = 0;  ///< elements
  bool operator==(const Place&) const = default;
};

/// A tensor as it is pushed: a key, or a bucket of keys.
struct LayoutTensor {
  KeySpec spec;
  std::vector<std::uint64_t> members;  ///< of a bucket: the tensors that it is made of, in order; else empty
  Place home;  ///< of a key: where it is pushed when it is a slot; itself if it never was
  bool operator==(const LayoutTensor&) const = default;
};

/// All tensors of a job, by number; members come before their buckets.
using Layout = std::vector<LayoutTensor>;

/// The caller and the subject, for people: "load_checkpoint", "the checkpoint".
struct Asker {
  std::string_view verb;
  std::string_view file;
};

/// Throws std::invalid_argument naming the first key that one of them lacks or has otherwise.
void require_same_keys(const Asker& asker, const Layout& saved, const Layout& here);
/// Likewise, of tables of rows.
void require_same_tables(const Asker& asker, std::span<const KeySpec> saved, std::span<const KeySpec> here);

/// A run of elements that goes from a tensor that was saved to one that is here.
struct Piece {
  std::uint64_t from = 0;         ///< tensor of the checkpoint
  std::uint64_t from_offset = 0;  ///< elements
  std::uint64_t offset = 0;       ///< elements, of the tensor here
  std::uint64_t count = 0;        ///< elements
  bool adds = false;              ///< to what came there before; else it is the first
  bool operator==(const Piece&) const = default;
};

/// The parts of a tensor's residual here. In equal layouts each tensor keeps its own. In others, all
/// residuals of a key, wherever it travelled, are added where it travels now, in order of the tensors'
/// numbers. So over all tensors every element of every residual is used once.
std::vector<Piece> residual_pieces(const Layout& saved, const Layout& here, std::uint64_t tensor);

/// Elements that a record and a run of its tensor have in common.
struct Overlap {
  std::uint64_t in_record = 0, in_run = 0, count = 0;
};
std::optional<Overlap> overlap(const RecordName& record, std::uint64_t offset, std::uint64_t count);

/// Takes over, into the state of a run of `elements`, what the state of a record of `from_elements` has of
/// it; steps are the most of all. Throws compress::DecodeError where that has another number of moments.
void take_over(OptimizerState& into, std::uint64_t elements, const Overlap& common,
               const OptimizerState& from, std::uint64_t from_elements);

/// What was, of a tensor here, its own: values, moments, steps. Its number in the checkpoint, or none where
/// it is new.
std::optional<std::uint64_t> same_tensor(const Layout& saved, const Layout& here, std::uint64_t tensor);

/// Which of `before` contributors' residuals contributor `index` of `now` goes on with, added in this order:
/// its own, and those of the ranks that are gone, in turns. Empty: it begins without.
std::vector<std::uint32_t> inherited(std::uint32_t index, std::uint32_t now, std::uint32_t before);

struct Manifest {
  struct File {
    std::string name;
    FileSeal seal;
    bool operator==(const File&) const = default;
  };
  std::uint64_t generation = 0;             ///< above that of the checkpoint it takes the place of
  std::uint32_t workers = 0;                ///< each has a file, in rank order
  std::vector<std::uint32_t> contributors;  ///< ranks that had residuals: all, or one of each host
  std::string optimizer;                    ///< as in set_optimizer(); empty: none
  Layout layout;
  std::vector<KeySpec> tables;  ///< of rows, by number
  std::vector<File> files;
  bool operator==(const Manifest&) const = default;
};

std::string write_manifest(const Manifest& manifest);
/// Throws compress::DecodeError naming `path` for any other text.
Manifest read_manifest(const std::string& text, const std::filesystem::path& path);

/// "checkpoint.manifest": what makes a folder's files a checkpoint.
std::filesystem::path manifest_path(const std::filesystem::path& folder);
/// "000007.worker-3.state"
std::string file_name(std::uint64_t generation, std::uint32_t rank);
/// One above all generations that files of the folder are of, begun and broken off ones among them; 1 where
/// there are none.
std::uint64_t next_generation(const std::filesystem::path& folder);
/// Removes files of other generations. What cannot be removed stays, to no harm.
void remove_other_generations(const std::filesystem::path& folder, std::uint64_t generation);

}  // namespace gradwire::kvstore
