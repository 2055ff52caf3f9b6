#include "kvstore/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compress/codec.h"
#include "tests/kvstore/folder.h"
#include "transport/checksum.h"

namespace gradwire::kvstore {
namespace {

const Asker kAsker{"load_checkpoint", "the checkpoint"};

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

LayoutTensor key(const std::string& name, std::uint64_t elements, Place home) {
  return {{name, {elements}}, {}, home};
}

/// Keys a, b and c; where a bucket is named, b and c travel in it.
Layout layout(bool in_bucket) {
  Layout tensors = {key("a", 10, {0, 0}), key("b", 3, {1, 0}), key("c", 4, {2, 0})};
  if (!in_bucket) return tensors;
  tensors[1].home = {3, 0};
  tensors[2].home = {3, 3};
  tensors.push_back({{"c to b", {7}}, {1, 2}, {3, 0}});
  return tensors;
}

Manifest manifest() {
  Manifest manifest{
      7, 2, {0, 1}, "sgd learning_rate=0.1", layout(true), {{"words", {101, 37}}, {"page's", {8}}}, {}};
  manifest.layout[0].spec.shape = {};  // a scalar
  manifest.layout[1].spec.name = "a name, with = and spaces";
  manifest.files = {{file_name(7, 0), {1234, 0xDEADBEEF}}, {file_name(7, 1), {99, 1}}};
  return manifest;
}

TEST(Manifest, ComesBackAsItWas) {
  EXPECT_EQ(read_manifest(write_manifest(manifest()), "f"), manifest());
  Manifest plain = manifest();
  plain.optimizer = "";
  plain.tables.clear();
  EXPECT_EQ(read_manifest(write_manifest(plain), "f"), plain);
}

TEST(Manifest, EveryChangedByteIsFound) {
  const std::string good = write_manifest(manifest());
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    EXPECT_THAT([&] { read_manifest(bad, "the/file"); },
                ThrowsMessage<compress::DecodeError>(HasSubstr("the/file")))
        << at;
    EXPECT_THROW(read_manifest(good.substr(0, at), "f"), compress::DecodeError) << at;
  }
}

TEST(Manifest, OtherVersionsAreNamed) {
  EXPECT_THAT(
      [] { read_manifest("gradwire checkpoint 9\nmore\n", "f"); },
      ThrowsMessage<compress::DecodeError>(HasSubstr("is 'gradwire checkpoint 9', and this program reads")));
  EXPECT_THAT([] { read_manifest("{}", "f"); },
              ThrowsMessage<compress::DecodeError>(HasSubstr("is no manifest")));
}

/// Of version 1: its sgd with a momentum is what is called mxnet_sgd now.
TEST(Manifest, OfVersion1IsReadWithItsOptimizersNameOfToday) {
  const auto written = [](const std::string& optimizer) {
    Manifest saved = manifest();
    saved.optimizer = optimizer;
    std::string text = write_manifest(saved);
    text.resize(text.rfind("checksum\t"));
    text.replace(0, text.find('\n'), "gradwire checkpoint 1");
    return text + fmt::format("checksum\t{:08x}\n", transport::checksum(std::as_bytes(std::span(text))));
  };
  for (const auto& [then, now] :
       {std::pair{"sgd learning_rate=0.5 momentum=0.5", "mxnet_sgd learning_rate=0.5 momentum=0.5"},
        {"sgd learning_rate=0.5 momentum=0", "sgd learning_rate=0.5 momentum=0"},
        {"adam learning_rate=0.5", "adam learning_rate=0.5"},
        {"", ""}}) {
    Manifest expected = manifest();
    expected.optimizer = now;
    EXPECT_EQ(read_manifest(written(then), "f"), expected);
  }
}

TEST(Inherited, RanksThatAreGoneGoToSurvivorsInTurns) {
  EXPECT_THAT(inherited(0, 4, 4), ElementsAre(0));
  EXPECT_THAT(inherited(0, 3, 4), ElementsAre(0, 3));
  EXPECT_THAT(inherited(1, 3, 4), ElementsAre(1));
  EXPECT_THAT(inherited(1, 2, 7), ElementsAre(1, 3, 5));
  EXPECT_THAT(inherited(5, 6, 4), IsEmpty());
}

TEST(Inherited, EveryRankGoesToExactlyOne) {
  for (std::uint32_t before = 1; before < 9; ++before) {
    for (std::uint32_t now = 1; now < 9; ++now) {
      std::vector<std::uint32_t> all;
      for (std::uint32_t index = 0; index < now; ++index)
        std::ranges::copy(inherited(index, now, before), std::back_inserter(all));
      std::ranges::sort(all);
      for (std::uint32_t rank = 0; rank < before; ++rank) EXPECT_EQ(all.at(rank), rank);
      EXPECT_EQ(all.size(), before);
    }
  }
}

TEST(ResidualPieces, OfTheSameLayoutAreWhatWasThere) {
  for (const bool in_bucket : {false, true}) {
    const Layout same = layout(in_bucket);
    for (std::uint64_t tensor = 0; tensor < same.size(); ++tensor) {
      EXPECT_THAT(residual_pieces(same, same, tensor),
                  ElementsAre(Piece{tensor, 0, 0, same[tensor].spec.elements(), false}));
    }
  }
}

TEST(ResidualPieces, OfAKeyMeetWhereItTravelsNow) {
  const Layout apart = layout(false), fused = layout(true);
  EXPECT_THAT(residual_pieces(fused, apart, 2),
              ElementsAre(Piece{2, 0, 0, 4, false}, Piece{3, 3, 0, 4, true}));
  EXPECT_THAT(residual_pieces(apart, fused, 2), IsEmpty());
  EXPECT_THAT(residual_pieces(apart, fused, 3),
              ElementsAre(Piece{1, 0, 0, 3, false}, Piece{2, 0, 3, 4, false}));
  EXPECT_THAT(residual_pieces(apart, fused, 0), ElementsAre(Piece{0, 0, 0, 10, false}));
}

TEST(ResidualPieces, TakeEveryElementOnce) {
  Layout other = layout(true);  // c alone again, b with a
  other[0].home = {4, 0};
  other[1].home = {4, 10};
  other[2].home = {2, 0};
  other.push_back({{"b to a", {13}}, {0, 1}, {4, 0}});
  for (const auto& [saved, here] :
       {std::pair{layout(true), other}, {other, layout(true)}, {layout(false), other}}) {
    std::vector<std::vector<int>> taken;
    for (const LayoutTensor& tensor : saved) taken.emplace_back(tensor.spec.elements());
    for (std::uint64_t tensor = 0; tensor < here.size(); ++tensor) {
      for (const Piece& piece : residual_pieces(saved, here, tensor)) {
        EXPECT_LE(piece.offset + piece.count, here[tensor].spec.elements());
        for (std::uint64_t i = 0; i < piece.count; ++i) ++taken[piece.from][piece.from_offset + i];
      }
    }
    for (const auto& counts : taken) EXPECT_THAT(counts, testing::Each(1));
  }
}

TEST(SameTensor, GoesByNamesOfKeysAndMembers) {
  Layout here = layout(true);
  std::swap(here[0], here[1]);
  here[3].members = {0, 2};
  EXPECT_EQ(same_tensor(layout(true), here, 0), 1U);
  EXPECT_EQ(same_tensor(layout(true), here, 3), 3U);
  here[3].members = {2, 0};
  EXPECT_EQ(same_tensor(layout(true), here, 3), std::nullopt);
}

TEST(SameKeys, NamesTheFirstDifference) {
  Layout other = layout(false);
  other[1].spec.shape = {5};
  EXPECT_THAT([&] { require_same_keys(kAsker, layout(true), other); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("has key 'b' float32 (3), this job has 'b' float32 (5)")));
  other.erase(other.begin() + 1);
  EXPECT_THAT([&] { require_same_keys(kAsker, layout(true), other); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("has key 'b' float32 (3), this job does not")));
  EXPECT_THAT([&] { require_same_keys(kAsker, other, layout(false)); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("this job has key 'b' float32 (3), the checkpoint does")));
  EXPECT_NO_THROW(require_same_keys(kAsker, layout(true), layout(false)));
}

TEST(SameTables, NamesTheFirstDifference) {
  const std::vector<KeySpec> saved = {{"words", {101, 37}}};
  EXPECT_THAT([&] { require_same_tables(kAsker, saved, {}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr(
                  "the checkpoint has table 'words' float32 (101, 37), this job does not; declare the "
                  "same tables before you load")));
  EXPECT_NO_THROW(require_same_tables(kAsker, saved, saved));
}

TEST(Generations, GoOnFromTheNewestEvenIfItWasBrokenOff) {
  const Folder folder;
  EXPECT_EQ(next_generation(folder.path()), 1U);
  overwrite(folder / file_name(3, 0), "");
  overwrite(folder / (file_name(4, 1) + ".unfinished"), "");
  overwrite(folder / "77.something of the user's", "");
  EXPECT_EQ(next_generation(folder.path()), 5U);
  remove_other_generations(folder.path(), 4);
  EXPECT_FALSE(std::filesystem::exists(folder / file_name(3, 0)));
  EXPECT_TRUE(std::filesystem::exists(folder / (file_name(4, 1) + ".unfinished")));
  EXPECT_TRUE(std::filesystem::exists(folder / "77.something of the user's"));
}

}  // namespace
}  // namespace gradwire::kvstore
