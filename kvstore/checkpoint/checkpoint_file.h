// A file of a checkpoint: records, each with its checksum, that appear under their name whole or not at all.
//
// Threading: one thread at a time.
// Failure: foreign, damaged or truncated bytes are a compress::DecodeError, an error of the system is a
// std::runtime_error; both name the file.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::kvstore {

/// What a record holds. Part of the file format, never renumber.
enum class RecordKind : std::uint32_t {
  kEnd = 0,             ///< the last: how many there were, and their digest
  kTensor = 1,          ///< a TensorState
  kPartition = 2,       ///< a PartitionState
  kFrontEnd = 3,        ///< bytes of the front end that drives the Engine
  kWorkerRows = 4,      ///< a RowState, of a worker
  kServerRows = 5,      ///< a RowState, of a server: some of its rows
  kOptimizer = 6,       ///< whose states follow: an OptimizerFile's first
  kOptimizerState = 7,  ///< an OptimizerState
};

/// Which elements of which tensor a record is of; of a table, which rows, at most, from the first on; zeros
/// where it is of none.
struct RecordName {
  RecordKind kind = RecordKind::kEnd;
  std::uint64_t tensor = 0;  ///< number in the checkpoint's layout
  std::uint64_t offset = 0;  ///< elements
  std::uint64_t count = 0;   ///< elements
  auto operator<=>(const RecordName&) const = default;
};

/// Tells one file from all others that could have its name.
struct FileSeal {
  std::uint64_t bytes = 0;
  std::uint32_t digest = 0;  ///< checksum of the records' checksums
  bool operator==(const FileSeal&) const = default;
};

/// Owns an open file.
class OpenFile {
 public:
  /// Throws std::runtime_error naming the path and the reason.
  OpenFile(const std::filesystem::path& path, int flags);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  void write(std::span<const std::byte> bytes);
  /// As the system says; what is read may be more or less, where somebody is writing.
  std::uint64_t bytes() const;
  /// Returns how many bytes were there; fewer than asked for at the end only.
  std::size_t read(std::uint64_t position, std::span<std::byte> bytes) const;
  /// Returns once the disk has what was written.
  void sync();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;
  int descriptor_;
};

/// What follows the name of a file that is not whole yet.
inline constexpr std::string_view kUnfinished = ".unfinished";

class CheckpointWriter {
 public:
  /// Begins a file; until finish() it is called path + unfinished, and no other writer's may be.
  explicit CheckpointWriter(std::filesystem::path path, std::string_view unfinished = kUnfinished);
  /// Takes away what was not finished.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  void add(const RecordName& name, std::span<const std::byte> bytes);
  /// Ends the file, has the disk take it and gives it its name. Once.
  FileSeal finish();

 private:
  std::filesystem::path path_, unfinished_;
  OpenFile file_;
  FileSeal seal_;
  std::uint64_t records_ = 0;
  std::vector<std::uint32_t> checksums_;
  bool is_finished_ = false;
};

class CheckpointReader {
 public:
  struct Record {
    RecordName name;
    std::uint64_t position = 0;  ///< of its bytes, in the file
    std::uint64_t bytes = 0;
    std::uint32_t checksum = 0;
  };

  /// Reads what records there are.
  explicit CheckpointReader(std::filesystem::path path);

  const std::vector<Record>& records() const { return records_; }
  FileSeal seal() const { return seal_; }
  std::vector<std::byte> read(const Record& record) const;
  /// At most so many bytes of its beginning, which nobody has compared with a checksum: verify() before.
  std::vector<std::byte> read_head(const Record& record, std::size_t most) const;
  /// Reads all of it.
  void verify() const;

 private:
  [[noreturn]] void refuse(const std::string& why) const;

  std::filesystem::path path_;
  OpenFile file_;
  std::vector<Record> records_;
  FileSeal seal_;
};

/// Writes a text file that is called path + kUnfinished, and returns once the disk has it. Where it throws,
/// there is none.
void write_unfinished(const std::filesystem::path& path, std::string_view text);
/// Gives it the name of path, and returns once the disk has that.
void give_name(const std::filesystem::path& path);
/// Reads a text file of at most `most` bytes.
std::string read_text_file(const std::filesystem::path& path, std::size_t most);
/// Returns once the disk has the folder's names.
void sync_folder(const std::filesystem::path& folder);

}  // namespace gradwire::kvstore
