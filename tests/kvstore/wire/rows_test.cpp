#include "kvstore/wire/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

constexpr RowShape kTable{10, 2};

std::string refusal(const Ids& ids, const std::vector<float>& values) {
  try {
    sum_duplicates(ids, values, kTable);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Rows, AreSortedAndThoseOfOneIdSummed) {
  const Rows rows = sum_duplicates(Ids{7, 2, 7, 0}, std::vector<float>{1, 2, 3, 4, 10, 20, 5, 6}, kTable);
  EXPECT_THAT(rows.ids, ElementsAre(0, 2, 7));
  EXPECT_THAT(rows.values, ElementsAre(5, 6, 3, 4, 11, 22));
}

TEST(Rows, SumsOfOneIdHaveTheOrderInWhichTheyWereGiven) {
  constexpr RowShape narrow{4, 1};
  EXPECT_THAT(sum_duplicates(Ids{3, 1, 3, 3}, std::vector<float>{1e8F, 0, 1, -1e8F}, narrow).values,
              ElementsAre(0, 0));  // (1e8 + 1) - 1e8 in float32
}

TEST(Rows, MayBeNone) { EXPECT_TRUE(sum_duplicates(Ids{}, std::vector<float>{}, kTable).ids.empty()); }

TEST(Rows, WhatIsOutsideTheTableIsNamed) {
  EXPECT_THAT(refusal({3, 10}, {0, 0, 0, 0}), HasSubstr("row_ids[1] is 10, outside a table of 10 rows"));
  EXPECT_THAT(refusal({-1}, {0, 0}), HasSubstr("row_ids[0] is -1"));
  EXPECT_THAT(refusal({1, 2}, {0, 0}), HasSubstr("2 values given, expected 2 row_ids times 2 elements"));
  EXPECT_THROW(distinct_ids(Ids{4, 10}, kTable), std::invalid_argument);
}

TEST(Rows, AskedIdsAreDistinct) { EXPECT_THAT(distinct_ids(Ids{4, 1, 4, 0}, kTable), ElementsAre(0, 1, 4)); }

TEST(PlaceRows, EveryRowHasOneHomeThere) {
  std::vector<std::uint64_t> load{50, 0, 0};
  const RowHomes homes = place_rows({100, 4}, 1, load);
  EXPECT_THAT(homes.servers, ElementsAre(1, 2, 0));
  std::vector<std::uint64_t> held(3);
  for (std::uint64_t id = 0; id < 100; ++id) {
    const std::size_t owner = homes.owner(id);
    EXPECT_EQ(homes.global(homes.local(id), owner), id);
    EXPECT_LT(homes.local(id), homes.share({100, 4}, owner).rows);
    ++held[owner];
  }
  for (std::size_t owner = 0; owner < 3; ++owner) EXPECT_EQ(homes.share({100, 4}, owner).rows, held[owner]);
  EXPECT_THAT(load, ElementsAre(50 + 33 * 16, 34 * 16, 33 * 16));
}

TEST(PlaceRows, ASmallTableGoesWholeToTheLightestServer) {
  std::vector<std::uint64_t> load{8, 4, 6};
  EXPECT_THAT(place_rows({10, 4}, 41, load).servers, ElementsAre(1));
  EXPECT_THAT(load, ElementsAre(8, 164, 6));
}

TEST(PlaceRows, NoServerIsGivenATableWithoutRows) {
  std::vector<std::uint64_t> load(5);
  EXPECT_THAT(place_rows({2, 1'000'000}, 1000, load).servers, ElementsAre(0, 1));
}

// Their elements wrapped to few, or to none, by which was divided.
TEST(RowShape, OfMoreElementsThanCanBeCountedIsRefused) {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 32;
  EXPECT_EQ(row_shape({"t", {std::uint64_t{1} << 60, 2}}), (RowShape{std::uint64_t{1} << 60, 2}));
  for (const std::uint64_t width : {kHalf, kHalf + 1}) {
    EXPECT_THAT(
        [width] {
          row_shape({"t", {kHalf, width}});
        },
        testing::ThrowsMessage<std::invalid_argument>(HasSubstr("'t'")));
  }
}

TEST(PlaceRows, TablesOfManyRowsAreSpreadAndTheirLoadsDoNotWrap) {
  std::vector<std::uint64_t> load{5, 0};
  const RowShape table{std::uint64_t{1} << 60, 2};
  for (int i = 0; i < 5; ++i) EXPECT_THAT(place_rows(table, 1, load).servers, testing::SizeIs(2));
  EXPECT_THAT(load, testing::Each(std::numeric_limits<std::uint64_t>::max()));
}

// Words are numbered by how often they are used: the first rows are in nearly every push.
TEST(PlaceRows, RowsThatAreUsedOftenAreSpread) {
  std::vector<std::uint64_t> load(4);
  const RowHomes homes = place_rows({50'000, 64}, 1, load);
  std::vector<double> uses(4);
  for (std::uint64_t id = 0; id < 50'000; ++id) uses[homes.owner(id)] += 1.0 / static_cast<double>(id + 10);
  const auto [least, most] = std::ranges::minmax(uses);
  EXPECT_LT(most, 1.05 * least);
}

}  // namespace
}  // namespace gradwire::kvstore
