#include "kvstore/checkpoint/checkpoint_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compress/codec.h"
#include "tests/kvstore/folder.h"

namespace gradwire::kvstore {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::string kText = "what is kept";

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

FileSeal write(const std::filesystem::path& path) {
  CheckpointWriter writer(path);
  writer.add({RecordKind::kTensor, 3, 65'536, 7}, bytes_of(kText));
  writer.add({RecordKind::kFrontEnd}, {});
  return writer.finish();
}

TEST(CheckpointFile, RecordsComeBack) {
  const Folder folder;
  const FileSeal seal = write(folder / "a");
  const CheckpointReader reader(folder / "a");
  EXPECT_EQ(reader.seal(), seal);
  EXPECT_EQ(seal.bytes, std::filesystem::file_size(folder / "a"));
  ASSERT_EQ(reader.records().size(), 2U);
  EXPECT_EQ(reader.records()[0].name, (RecordName{RecordKind::kTensor, 3, 65'536, 7}));
  EXPECT_TRUE(std::ranges::equal(reader.read(reader.records()[0]), bytes_of(kText)));
  EXPECT_TRUE(reader.read(reader.records()[1]).empty());
  EXPECT_TRUE(std::ranges::equal(reader.read_head(reader.records()[0], 4), bytes_of("what")));
  EXPECT_TRUE(std::ranges::equal(reader.read_head(reader.records()[0], 99), bytes_of(kText)));
  EXPECT_FALSE(std::filesystem::exists(folder / "a.unfinished"));
}

TEST(CheckpointFile, WhatIsNotFinishedLeavesTheFileBeforeIt) {
  const Folder folder;
  const FileSeal seal = write(folder / "a");
  {
    CheckpointWriter writer(folder / "a");
    writer.add({RecordKind::kTensor, 1, 0, 1}, bytes_of("something else"));
  }
  EXPECT_EQ(CheckpointReader(folder / "a").seal(), seal);
  EXPECT_FALSE(std::filesystem::exists(folder / "a.unfinished"));
}

TEST(CheckpointFile, EveryChangedBitIsFound) {
  const Folder folder;
  write(folder / "a");
  const std::string good = contents(folder / "a");
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    overwrite(folder / "a", bad);
    const auto read_all = [&] { CheckpointReader(folder / "a").verify(); };
    if (at >= 12 && at < 16) continue;  // nothing yet
    EXPECT_THAT(read_all, ThrowsMessage<compress::DecodeError>(HasSubstr(folder / "a"))) << at;
  }
}

TEST(CheckpointFile, WhatIsCutShortOrGoesOnIsRefused) {
  const Folder folder;
  write(folder / "a");
  const std::string good = contents(folder / "a");
  for (std::size_t length = 0; length < good.size(); ++length) {
    overwrite(folder / "a", good.substr(0, length));
    EXPECT_THROW(CheckpointReader(folder / "a"), compress::DecodeError) << length;
  }
  overwrite(folder / "a", good + "x");
  EXPECT_THAT([&] { CheckpointReader(folder / "a"); },
              ThrowsMessage<compress::DecodeError>(HasSubstr("goes on after its end")));
}

TEST(CheckpointFile, ForeignFilesAndOtherVersionsAreNamed) {
  const Folder folder;
  overwrite(folder / "a", std::string(100, 'x'));
  EXPECT_THAT(
      [&] { CheckpointReader(folder / "a"); },
      ThrowsMessage<compress::DecodeError>(AllOf(HasSubstr(folder / "a"), HasSubstr("is no file of a"))));
  write(folder / "a");
  std::string newer = contents(folder / "a");
  newer[8] = 2;
  overwrite(folder / "a", newer);
  EXPECT_THAT([&] { CheckpointReader(folder / "a"); },
              ThrowsMessage<compress::DecodeError>(HasSubstr("version 2 of the format")));
}

// The most that a text may have is not what reading it takes.
TEST(TextFile, TakesTheMemoryThatItHas) {
  const Folder folder;
  write_unfinished(folder / "a", "text");
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  give_name(folder / "a");
  EXPECT_FALSE(std::filesystem::exists(folder / "a.unfinished"));
  EXPECT_EQ(read_text_file(folder / "a", std::size_t{1} << 50), "text");
  EXPECT_EQ(read_text_file(folder / "a", 4), "text");
  EXPECT_THAT([&] { read_text_file(folder / "a", 3); },
              ThrowsMessage<compress::DecodeError>(HasSubstr("has 4 bytes, expected at most 3")));
}

TEST(CheckpointFile, WhatTheSystemRefusesIsNamed) {
  const Folder folder;
  EXPECT_THAT(
      [&] { CheckpointReader(folder / "none"); },
      ThrowsMessage<std::runtime_error>(AllOf(HasSubstr(folder / "none"), HasSubstr("cannot be opened"))));
  EXPECT_THAT([&] { CheckpointWriter(folder / "no/such/folder"); },
              ThrowsMessage<std::runtime_error>(HasSubstr("cannot be opened")));
  EXPECT_THAT([] { OpenFile("/dev/full", O_WRONLY).write(bytes_of(kText)); },
              ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("/dev/full"), HasSubstr("No space left"))));
}

}  // namespace
}  // namespace gradwire::kvstore
