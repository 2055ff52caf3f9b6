#include "kvstore/checkpoint/optimizer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compress/codec.h"
#include "kvstore/aggregate/partition_state.h"
#include "tests/kvstore/folder.h"

namespace gradwire::kvstore {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// A job's tensors: two keys, and the bucket that they travel in where there is no optimizer.
const Layout kHere = {{{"w", {2, 3}}, {}, {2, 0}}, {{"b", {2}}, {}, {2, 6}}, {{"both", {8}}, {0, 1}, {2, 0}}};
constexpr std::uint64_t kB = 0, kW = 1;  // numbers in the file: by name

/// Two servers have cut w behind its fourth element; adam has met it 5 times, and b never.
const OptimizerState kFront = {{1, 2, 3, 4, 10, 20, 30, 40}, 5}, kBack = {{5, 6, 50, 60}, 5};

void add(CheckpointWriter& file, std::uint64_t key, std::uint64_t offset, std::uint64_t count,
         const OptimizerState& state) {
  file.add({RecordKind::kOptimizerState, key, offset, count}, encode_state(state).bytes());
}

void write(const std::filesystem::path& path, Dump dump = Dump::kStates) {
  CheckpointWriter file(path);
  add_head(file, optimizer_head(dump, "adam learning_rate=0.5", kHere));
  add(file, kW, 4, 2, kBack);
  add(file, kB, 0, 2, {});
  add(file, kW, 0, 4, kFront);
  file.finish();
}

template <typename Matcher>
void expect_refused(const std::string& path, const Matcher& why) {
  EXPECT_THAT([&] { OptimizerFile file(path); },
              ThrowsMessage<compress::DecodeError>(AllOf(HasSubstr(path), why)));
}

TEST(OptimizerFile, SaysWhoseStatesItHolds) {
  const Folder folder;
  const Layout keys = {{{"b", {2}}, {}, {0, 0}}, {{"w", {2, 3}}, {}, {1, 0}}};
  write(folder / "a");
  EXPECT_EQ(OptimizerFile(folder / "a").head(), (OptimizerHead{Dump::kStates, "adam", keys}));
  write(folder / "a", Dump::kStatesAndParameters);
  EXPECT_EQ(OptimizerFile(folder / "a").head(),
            (OptimizerHead{Dump::kStatesAndParameters, "adam learning_rate=0.5", keys}));
}

/// Of version 1: its sgd that has moments is what is called mxnet_sgd now.
TEST(OptimizerFile, OfVersion1SaysItsOptimizersNameOfToday) {
  const Folder folder;
  const auto name_in = [&](const std::string& head, const OptimizerState& state) {
    {
      CheckpointWriter file(folder / "a");
      const std::string text = head;
      file.add({RecordKind::kOptimizer}, std::as_bytes(std::span(text)));
      add(file, 0, 0, 2, state);
      file.finish();
    }
    return OptimizerFile(folder / "a").head().optimizer;
  };
  const OptimizerState moved{{1, 2}, 5};
  EXPECT_EQ(name_in("states\n1\nb\tfloat32\t2\nsgd", moved), "mxnet_sgd");
  EXPECT_EQ(name_in("states and parameters\n1\nb\tfloat32\t2\nsgd momentum=0.5", moved),
            "mxnet_sgd momentum=0.5");
  EXPECT_EQ(name_in("states\n1\nb\tfloat32\t2\nsgd", {{}, 5}), "sgd");
  EXPECT_EQ(name_in("states\n1\nb\tfloat32\t2\nadagrad", moved), "adagrad");
  EXPECT_EQ(name_in("states 2\n1\nb\tfloat32\t2\nsgd", moved), "sgd");
}

TEST(OptimizerFile, GivesStatesHoweverTheyAreCut) {
  const Folder folder;
  write(folder / "a");
  const OptimizerFile file(folder / "a");
  EXPECT_EQ(file.state(kW, 0, 4), kFront);
  EXPECT_EQ(file.state(kW, 4, 2), kBack);
  EXPECT_EQ(file.state(kW, 0, 6), (OptimizerState{{1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60}, 5}));
  EXPECT_EQ(file.state(kW, 3, 2), (OptimizerState{{4, 5, 40, 50}, 5}));
  EXPECT_EQ(file.state(kB, 0, 2), OptimizerState());
}

TEST(OptimizerFile, EveryChangedBitIsFound) {
  const Folder folder;
  write(folder / "a");
  const std::string good = contents(folder / "a");
  for (std::size_t at = 0; at < good.size(); ++at) {
    if (at >= 12 && at < 16) continue;  // nothing yet
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    overwrite(folder / "a", bad);
    expect_refused(folder / "a", HasSubstr(""));
  }
  for (std::size_t length = 0; length < good.size(); ++length) {
    overwrite(folder / "a", good.substr(0, length));
    expect_refused(folder / "a", HasSubstr(""));
  }
}

TEST(OptimizerFile, OtherFilesAreNamed) {
  const Folder folder;
  EXPECT_THAT([&] { OptimizerFile file(folder / "none"); },
              ThrowsMessage<std::runtime_error>(AllOf(HasSubstr(folder / "none"), HasSubstr("opened"))));
  overwrite(folder / "text", std::string(1000, 'x'));
  expect_refused(folder / "text", HasSubstr("is no file of a checkpoint"));
  {
    CheckpointWriter file(folder / "checkpoint");
    file.add({RecordKind::kTensor, 0, 0, 6}, {});
    file.finish();
  }
  expect_refused(folder / "checkpoint", HasSubstr("holds no optimizer's states; give a file that save_opt"));
}

TEST(OptimizerFile, SoundRecordsOfSomethingElseAreRefused) {
  const Folder folder;
  const auto expect = [&](const std::function<void(CheckpointWriter&)>& fill, const char* why) {
    {
      CheckpointWriter file(folder / "a");
      fill(file);
      file.finish();
    }
    expect_refused(folder / "a", HasSubstr(why));
  };
  const auto head = [](CheckpointWriter& file) {
    add_head(file, optimizer_head(Dump::kStates, "adam", kHere));
  };
  for (const std::string text :
       {"", "states\n", "states\n9\n", "states\nx\n", "states\n1\nw\tfloat32\tx\nadam", "weights\n0\nadam",
        "states\n0\nadam beta1=x", "states\n0\nadams", "states and parameters\n0\nadam beta=1"}) {
    expect(
        [&](CheckpointWriter& file) { file.add({RecordKind::kOptimizer}, std::as_bytes(std::span(text))); },
        "does not say of which keys and optimizer");
  }
  expect(
      [&](CheckpointWriter& file) {
        head(file);
        add(file, 2, 0, 2, {});
      },
      "holds what its head does not know");
  expect(
      [&](CheckpointWriter& file) {
        head(file);
        add(file, kW, 5, ~std::uint64_t{0}, {});
      },
      "holds what its head does not know");
  expect(
      [&](CheckpointWriter& file) {
        head(file);
        add(file, kB, 0, 2, {});
        file.add({RecordKind::kOptimizerState, kW, 0, 6}, {});
      },
      "holds what is no state");
  expect(
      [&](CheckpointWriter& file) {
        head(file);
        add(file, kB, 0, 2, {});
        add(file, kW, 0, 4, kFront);
      },
      "lacks elements of key 'w'");
  expect(
      [&](CheckpointWriter& file) {
        head(file);
        add(file, kB, 0, 2, {});
        add(file, kW, 0, 4, kFront);
        add(file, kW, 4, 2, {{5, 6}, 5});
      },
      "has 1 moments an element of key 'w', and adam keeps 2");
}

}  // namespace
}  // namespace gradwire::kvstore
