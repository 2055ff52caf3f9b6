#include "kvstore/rows/stored_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace gradwire::kvstore {
namespace {

using testing::Each;
using testing::ElementsAre;

TEST(StoredRows, ARowThatWasNeverWrittenIsNotThere) {
  StoredRows rows(3);
  EXPECT_TRUE(rows.find(5).empty());
  EXPECT_THAT(rows.at(5), ElementsAre(0, 0, 0));
  EXPECT_EQ(rows.find(5).size(), 3U);
  EXPECT_EQ(rows.size(), 1U);
}

TEST(StoredRows, RowsStayWhereTheyAreAsOthersCome) {
  StoredRows rows(100);  // blocks of 163
  std::map<std::uint64_t, float*> places;
  std::mt19937_64 random(3);
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t id = random() % 1'000'000'000'000;
    const auto row = rows.at(id);
    row[99] = static_cast<float>(id % 1000);
    places[id] = row.data();
  }
  EXPECT_EQ(rows.size(), places.size());
  std::vector<std::uint64_t> ids;
  for (const auto& [id, place] : places) {
    ids.push_back(id);
    ASSERT_EQ(rows.find(id).data(), place);
    ASSERT_EQ(rows.find(id)[99], static_cast<float>(id % 1000));
  }
  EXPECT_EQ(rows.ids(), ids);
}

TEST(StoredRows, ARowMayBeLongerThanABlock) {
  StoredRows rows(20'000);
  rows.at(1)[19'999] = 1;
  rows.at(2)[0] = 2;
  EXPECT_EQ(rows.find(1)[19'999], 1);
  EXPECT_EQ(rows.find(2)[0], 2);
}

TEST(StoredRows, ClearedRowsAreZeroAgain) {
  StoredRows rows(2);
  rows.at(4)[0] = 7;
  rows.clear();
  EXPECT_TRUE(rows.find(4).empty());
  EXPECT_THAT(rows.at(4), Each(0));
}

}  // namespace
}  // namespace gradwire::kvstore
