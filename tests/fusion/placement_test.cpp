#include "fusion/placement.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <set>
#include <stdexcept>

namespace gradwire::fusion {
namespace {

using Loads = std::vector<std::uint64_t>;
using Placed = std::vector<std::vector<Shard>>;

struct Case {
  std::vector<TensorSize> tensors;
  std::uint32_t servers = 1;
  std::uint64_t unit_elements = 1;
  std::uint64_t shard_bound = 0;

  bool sharded(const TensorSize& tensor) const {
    return tensor.elements > 0 && tensor.elements >= shard_bound;
  }
  Placed place_into(Loads& load) const { return place(tensors, servers, unit_elements, shard_bound, load); }
};

Case random_case(std::mt19937& random) {
  Case c;
  c.servers = 1 + random() % 9;
  c.unit_elements = 1 + random() % 50;
  c.shard_bound = random() % 400;
  c.tensors.resize(random() % 30);
  for (TensorSize& tensor : c.tensors) {
    tensor.elements = random() % (random() % 4 == 0 ? 5000 : 200);
    tensor.element_bytes = random() % 2 == 0 ? 4 : 2;
  }
  return c;
}

// Counts, element by element, whose server each one is: the definition of a placement's load.
Loads loads_by_brute_force(const Case& c, const Placed& placed) {
  Loads load(c.servers, 0);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    std::size_t at = 0;
    for (std::uint64_t element = 0; element < c.tensors[i].elements; ++element) {
      while (at + 1 < placed[i].size() && placed[i][at + 1].begin <= element) ++at;
      load[placed[i][at].server] += c.tensors[i].element_bytes;
    }
  }
  return load;
}

TEST(Place, LoadsAreTheBytesPlacedAndEveryBoundaryIsOnAUnit) {
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    const Case c = random_case(random);
    Loads load(c.servers, 0);
    const Placed placed = c.place_into(load);
    ASSERT_EQ(placed.size(), c.tensors.size());
    ASSERT_EQ(load, loads_by_brute_force(c, placed));
    for (std::size_t i = 0; i < placed.size(); ++i) {
      ASSERT_EQ(placed[i].front().begin, 0U);
      std::set<std::uint32_t> owners;
      for (std::size_t k = 0; k < placed[i].size(); ++k) {
        ASSERT_EQ(placed[i][k].begin % c.unit_elements, 0U);
        ASSERT_LT(placed[i][k].server, c.servers);
        ASSERT_TRUE(owners.insert(placed[i][k].server).second) << "a server owns two shards of a tensor";
        if (k > 0) {
          ASSERT_GT(placed[i][k].begin, placed[i][k - 1].begin);
          ASSERT_LT(placed[i][k].begin, c.tensors[i].elements);
        }
      }
      const std::uint64_t units = (c.tensors[i].elements + c.unit_elements - 1) / c.unit_elements;
      ASSERT_EQ(placed[i].size(), c.sharded(c.tensors[i]) ? std::min<std::uint64_t>(units, c.servers) : 1U);
    }
  }
}

TEST(Place, LoadsStayWithinTheLargestIndivisiblePiece) {
  std::mt19937 random(6);
  for (int round = 0; round < 20000; ++round) {
    const Case c = random_case(random);
    std::uint64_t bound = 0;
    for (const TensorSize& tensor : c.tensors) {
      bound = std::max(bound, (c.sharded(tensor) ? c.unit_elements : tensor.elements) * tensor.element_bytes);
    }
    Loads load(c.servers, 0);
    c.place_into(load);
    const auto [low, high] = std::ranges::minmax(load);
    ASSERT_LE(high - low, bound);
  }
}

TEST(Place, EveryRankDecidesTheSameWhetherKeysComeTogetherOrOneByOne) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const Case c = random_case(random);
    Loads together(c.servers, 0);
    Loads one_by_one(c.servers, 0);
    const Placed placed = c.place_into(together);
    for (std::size_t i = 0; i < c.tensors.size(); ++i) {
      Case one = c;
      one.tensors = {c.tensors[i]};
      ASSERT_EQ(one.place_into(one_by_one).front(), placed[i]);
    }
    ASSERT_EQ(one_by_one, together);
  }
}

TEST(Place, SmallTensorsGoToTheLightestServerAndTiesToTheLowestIndex) {
  Loads load{100, 0, 0};
  const std::vector<TensorSize> tensors{{5, 4}, {1, 4}, {1, 4}};
  EXPECT_THAT(place(tensors, 3, 1, 1000, load),
              testing::ElementsAre(std::vector<Shard>{{0, 1}}, std::vector<Shard>{{0, 2}},
                                   std::vector<Shard>{{0, 2}}));
  EXPECT_THAT(load, testing::ElementsAre(100, 20, 8));
}

TEST(Place, UnevenUnitsGoToTheLighterServers) {
  Loads load{8, 0};
  const std::vector<TensorSize> tensors{{24, 4}};  // three units of 8: the lighter server takes two
  EXPECT_THAT(place(tensors, 2, 8, 0, load), testing::ElementsAre(std::vector<Shard>{{0, 0}, {8, 1}}));
  EXPECT_THAT(load, testing::ElementsAre(8 + 32, 64));
}

TEST(Place, RejectsNoServersNoUnitAndForeignLoads) {
  Loads none;
  Loads one{0};
  EXPECT_THROW(place({}, 0, 1, 1, none), std::invalid_argument);
  EXPECT_THROW(place({}, 1, 0, 1, one), std::invalid_argument);
  EXPECT_THROW(place({}, 2, 1, 1, one), std::invalid_argument);
}

}  // namespace
}  // namespace gradwire::fusion
