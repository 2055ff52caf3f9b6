// A file of what a job's optimizer keeps of every key beside its weight: momentum, moments, steps
// (FORMAT.md). It holds keys by name and element, however servers have cut them.
//
// Threading: one thread at a time.
// Failure: a damaged, truncated or different file is a compress::DecodeError, an error of the system is a
// std::runtime_error; both name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kvstore/aggregate/updater.h"
#include "kvstore/checkpoint/checkpoint.h"
#include "kvstore/checkpoint/checkpoint_file.h"

namespace gradwire::kvstore {

/// Whether a file gives its optimizer's parameters too, to be in force when it is loaded.
enum class Dump : std::uint8_t { kStates, kStatesAndParameters };

/// What a file begins with: whose states they are, and of which keys. Their numbers in records count from 0.
struct OptimizerHead {
  Dump dump = Dump::kStates;
  std::string optimizer;  ///< its name; with its parameters as in set_optimizer() where they are given too
  Layout keys;            ///< no buckets, each at home
  bool operator==(const OptimizerHead&) const = default;
};

/// Makes a head of what is in force: the keys of a layout, by name, and an optimizer as in set_optimizer().
OptimizerHead optimizer_head(Dump dump, const std::string& optimizer, const Layout& here);

/// Begins a file of states, as CheckpointWriter does; records of kind kOptimizerState follow.
void add_head(CheckpointWriter& file, const OptimizerHead& head);

class OptimizerFile {
 public:
  /// Reads all of it once, so that nothing of it is refused later.
  explicit OptimizerFile(std::filesystem::path path);

  const OptimizerHead& head() const { return head_; }
  FileSeal seal() const { return file_.seal(); }
  /// The state of a run of a key's elements, a key by its number in the head.
  OptimizerState state(std::uint64_t key, std::uint64_t offset, std::uint64_t count) const;

 private:
  [[noreturn]] void refuse(const std::string& why) const;
  void read_head();
  void read_index();
  /// kept: kinds of moments that the file's optimizer keeps.
  void require_whole(std::uint64_t key, std::size_t kept) const;
  OptimizerState read(const CheckpointReader::Record& record) const;

  const std::filesystem::path path_;
  const CheckpointReader file_;
  OptimizerHead head_;
  bool is_version_1_ = false;
  std::vector<std::vector<const CheckpointReader::Record*>> records_;  ///< by key, each list by offset
};

}  // namespace gradwire::kvstore
