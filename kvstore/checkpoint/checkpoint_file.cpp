#include "kvstore/checkpoint/checkpoint_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "compress/codec.h"
#include "compress/payload/little_endian.h"
#include "transport/checksum.h"

namespace gradwire::kvstore {
namespace {

using compress::load;
using compress::store;

constexpr std::string_view kMagic = "gwstate\n";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeadBytes = 16;    // magic, version u32, 0 u32
constexpr std::size_t kRecordBytes = 48;  // the fields below; checksum of those before it
constexpr std::size_t kAtKind = 0, kAtChecksum = 4, kAtTensor = 8, kAtOffset = 16, kAtCount = 24,
                      kAtBytes = 32, kAtOwnChecksum = 44;
using RecordHead = std::array<std::byte, kRecordBytes>;

RecordHead record_head(const RecordName& name, std::uint64_t bytes, std::uint32_t checksum) {
  RecordHead head{};
  store(static_cast<std::uint32_t>(name.kind), head.data() + kAtKind);
  store(checksum, head.data() + kAtChecksum);
  store(name.tensor, head.data() + kAtTensor);
  store(name.offset, head.data() + kAtOffset);
  store(name.count, head.data() + kAtCount);
  store(bytes, head.data() + kAtBytes);
  store(transport::checksum(std::span(head).first(kAtOwnChecksum)), head.data() + kAtOwnChecksum);
  return head;
}

std::uint32_t own_checksum(const RecordHead& head) {
  return load<std::uint32_t>(head.data() + kAtOwnChecksum);
}

std::uint32_t digest_of(std::span<const std::uint32_t> checksums) {
  return transport::checksum(std::as_bytes(checksums));
}

void rename_into_place(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error) throw std::runtime_error(fmt::format("checkpoint: {}: {}", to.string(), error.message()));
  // The name is in the folder, which the disk does not have before this.
  sync_folder(to.parent_path());
}

}  // namespace

// ------------------------------------------------------------------------------------- files

OpenFile::OpenFile(const std::filesystem::path& path, int flags)
    : path_(path), descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail("cannot be opened");
}

OpenFile::~OpenFile() { ::close(descriptor_); }

void OpenFile::fail(const char* what) const {
  throw std::runtime_error(fmt::format("checkpoint: {} {} ({})", path_.string(), what, std::strerror(errno)));
}

void OpenFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor_, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("cannot be written");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

std::size_t OpenFile::read(std::uint64_t position, std::span<std::byte> bytes) const {
  std::size_t all = 0;
  while (all < bytes.size()) {
    const ssize_t done =
        ::pread(descriptor_, bytes.data() + all, bytes.size() - all, static_cast<off_t>(position + all));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("cannot be read");
    // The end of the file. The caller sees that fewer bytes came, and says what was cut short.
    if (done == 0) break;
    all += static_cast<std::size_t>(done);
  }
  return all;
}

std::uint64_t OpenFile::bytes() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail("cannot be read");
  return static_cast<std::uint64_t>(status.st_size);
}

void OpenFile::sync() {
  if (::fsync(descriptor_) != 0) fail("cannot be written to the disk");
}

void sync_folder(const std::filesystem::path& folder) {
  OpenFile(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY).sync();
}

void write_unfinished(const std::filesystem::path& path, std::string_view text) {
  const auto temporary = std::filesystem::path(path) += kUnfinished;
  try {
    OpenFile file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    file.write(std::as_bytes(std::span(text)));
    file.sync();
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
}

void give_name(const std::filesystem::path& path) {
  rename_into_place(std::filesystem::path(path) += kUnfinished, path);
}

std::string read_text_file(const std::filesystem::path& path, std::size_t most) {
  const OpenFile file(path, O_RDONLY);
  const std::uint64_t bytes = file.bytes();
  if (bytes > most) {
    throw compress::DecodeError(fmt::format(
        "checkpoint: {} has {} bytes, expected at most {}; it is none of ours", path.string(), bytes, most));
  }
  std::string text(bytes, '\0');
  // Somebody may be writing, so that fewer bytes come than the size promised.
  text.resize(file.read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

// ------------------------------------------------------------------------------------- writing

CheckpointWriter::CheckpointWriter(std::filesystem::path path, std::string_view unfinished)
    : path_(std::move(path)),
      unfinished_(std::filesystem::path(path_) += unfinished),
      // What a save that was broken off has left under this name is overwritten.
      file_(unfinished_, O_WRONLY | O_CREAT | O_TRUNC) {
  std::array<std::byte, kHeadBytes> head{};
  std::ranges::copy(std::as_bytes(std::span(kMagic)), head.begin());
  store(kVersion, head.data() + kMagic.size());
  file_.write(head);
  seal_.bytes = head.size();
}

CheckpointWriter::~CheckpointWriter() {
  std::error_code ignored;  // what cannot be removed is overwritten next time
  if (!is_finished_) std::filesystem::remove(unfinished_, ignored);
}

void CheckpointWriter::add(const RecordName& name, std::span<const std::byte> bytes) {
  const RecordHead head = record_head(name, bytes.size(), transport::checksum(bytes));
  file_.write(head);
  file_.write(bytes);
  seal_.bytes += head.size() + bytes.size();
  // The head's checksum covers that of the bytes, so a digest of these distinguishes one file from another.
  checksums_.push_back(own_checksum(head));
  ++records_;
}

FileSeal CheckpointWriter::finish() {
  seal_.digest = digest_of(checksums_);
  // Without an end that counts the records, a file cut between two of them would look whole.
  const RecordHead end = record_head({RecordKind::kEnd, 0, 0, records_}, 0, seal_.digest);
  file_.write(end);
  seal_.bytes += end.size();
  // The bytes before the name: whatever happens later, a file that has its name is whole.
  file_.sync();
  rename_into_place(unfinished_, path_);
  is_finished_ = true;
  return seal_;
}

// ------------------------------------------------------------------------------------- reading

void CheckpointReader::refuse(const std::string& why) const {
  throw compress::DecodeError(
      fmt::format("checkpoint: {} {}; take another checkpoint, or a copy of this one", path_.string(), why));
}

CheckpointReader::CheckpointReader(std::filesystem::path path)
    : path_(std::move(path)), file_(path_, O_RDONLY) {
  std::array<std::byte, kHeadBytes> head{};
  if (file_.read(0, head) < head.size() ||
      !std::ranges::equal(std::span(head).first(kMagic.size()), std::as_bytes(std::span(kMagic))))
    refuse("is no file of a checkpoint");
  if (const auto version = load<std::uint32_t>(head.data() + kMagic.size()); version != kVersion)
    refuse(fmt::format("has version {} of the format, and this program reads {}", version, kVersion));
  std::vector<std::uint32_t> checksums;
  std::uint64_t position = head.size();
  for (;;) {
    RecordHead record{};
    if (file_.read(position, record) < record.size()) refuse("is cut short");
    // Before a field of it is used: a damaged length would lead to any place of the file.
    if (transport::checksum(std::span(record).first(kAtOwnChecksum)) != own_checksum(record))
      refuse(fmt::format("is damaged at byte {}", position));
    position += record.size();
    const RecordName name{static_cast<RecordKind>(load<std::uint32_t>(record.data() + kAtKind)),
                          load<std::uint64_t>(record.data() + kAtTensor),
                          load<std::uint64_t>(record.data() + kAtOffset),
                          load<std::uint64_t>(record.data() + kAtCount)};
    const auto bytes = load<std::uint64_t>(record.data() + kAtBytes);
    const auto checksum = load<std::uint32_t>(record.data() + kAtChecksum);
    if (name.kind == RecordKind::kEnd) {
      seal_ = {position, digest_of(checksums)};
      if (name.count != records_.size() || checksum != seal_.digest) refuse("lacks some of its records");
      std::byte more{};
      if (file_.read(position, {&more, 1}) != 0) refuse("goes on after its end");
      return;
    }
    // A sum beyond that would wrap, or be no position of a file.
    if (bytes > static_cast<std::uint64_t>(INT64_MAX) - position) refuse("is damaged");
    records_.push_back({name, position, bytes, checksum});
    checksums.push_back(own_checksum(record));
    position += bytes;
  }
}

std::vector<std::byte> CheckpointReader::read(const Record& record) const {
  // A cut file was refused before, so there are so many bytes.
  std::vector<std::byte> bytes(record.bytes);
  if (file_.read(record.position, bytes) < bytes.size()) refuse("is cut short");
  if (transport::checksum(bytes) != record.checksum)
    refuse(
        fmt::format("is damaged between bytes {} and {}", record.position, record.position + record.bytes));
  return bytes;
}

std::vector<std::byte> CheckpointReader::read_head(const Record& record, std::size_t most) const {
  std::vector<std::byte> bytes(std::min<std::uint64_t>(record.bytes, most));
  if (file_.read(record.position, bytes) < bytes.size()) refuse("is cut short");
  return bytes;
}

void CheckpointReader::verify() const {
  // read() compares each with its checksum, and what it returns is not needed.
  for (const Record& record : records_) read(record);
}

}  // namespace gradwire::kvstore
