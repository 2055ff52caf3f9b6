#include "fusion/partition.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <stdexcept>

namespace gradwire::fusion {
namespace {

// Walks the tensor unit by unit and closes a partition when one more unit would not fit.
std::vector<Partition> cut_by_brute_force(std::uint64_t elements, std::uint64_t unit,
                                          std::uint64_t max_elements) {
  std::vector<Partition> partitions;
  for (std::uint64_t at = 0; at < elements;) {
    const std::uint64_t unit_count = std::min(unit, elements - at);
    if (partitions.empty() || partitions.back().count + unit > std::max(max_elements, unit)) {
      partitions.push_back({at, 0});
    }
    partitions.back().count += unit_count;
    at += unit_count;
  }
  return partitions;
}

TEST(Cut, EqualsBruteForceOnRandomInputs) {
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    const std::uint64_t elements = 1 + random() % 500;
    const std::uint64_t unit = 1 + random() % 40;
    const std::uint64_t max_elements = random() % 200;
    ASSERT_EQ(cut(elements, unit, max_elements), cut_by_brute_force(elements, unit, max_elements))
        << "elements=" << elements << " unit=" << unit << " max=" << max_elements;
  }
}

TEST(Cut, CoversTheTensorExactlyInWholeUnits) {
  std::mt19937 random(4);
  for (int round = 0; round < 20000; ++round) {
    const std::uint64_t elements = 1 + random() % 500;
    const std::uint64_t unit = 1 + random() % 40;
    std::uint64_t next = 0;
    for (const Partition& partition : cut(elements, unit, random() % 200)) {
      ASSERT_EQ(partition.offset, next);
      ASSERT_GT(partition.count, 0U);
      ASSERT_EQ(partition.offset % unit, 0U);
      next += partition.count;
    }
    ASSERT_EQ(next, elements);
  }
}

TEST(Cut, WorksBeyondFourBillionElements) {
  const std::uint64_t elements = (1ULL << 33) + 5;
  EXPECT_THAT(cut(elements, 1024, 1ULL << 32),
              testing::ElementsAre(Partition{0, 1ULL << 32}, Partition{1ULL << 32, 1ULL << 32},
                                   Partition{1ULL << 33, 5}));
  EXPECT_THAT(cut(elements, 1ULL << 62, ~0ULL), testing::ElementsAre(Partition{0, elements}));
}

TEST(Cut, RejectsNothingToCutAndNoUnit) {
  EXPECT_THROW(cut(0, 1, 1), std::invalid_argument);
  EXPECT_THROW(cut(1, 0, 1), std::invalid_argument);
}

TEST(InTurns, GivesEveryOwnerItsFirstPieceBeforeAnyItsSecond) {
  const std::vector<std::uint32_t> owners = {0, 0, 0, 1, 1, 2, 2};
  EXPECT_THAT(in_turns(owners, 1), testing::ElementsAre(3, 5, 0, 4, 6, 1, 2));
  EXPECT_THAT(in_turns(owners, 0), testing::ElementsAre(0, 3, 5, 1, 4, 6, 2));
  EXPECT_THAT(in_turns(owners, 7), testing::ElementsAre(0, 3, 5, 1, 4, 6, 2)) << "no such owner";
  EXPECT_THAT(in_turns({}, 0), testing::IsEmpty());
}

TEST(InTurns, KeepsThePiecesOfAnOwnerInOrderAndEachOnce) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::uint32_t> owners(random() % 40);
    for (auto& owner : owners) owner = random() % 6;
    const auto order = in_turns(owners, random() % 6);
    EXPECT_THAT(std::set<std::size_t>(order.begin(), order.end()), testing::SizeIs(owners.size()));
    std::map<std::uint32_t, std::size_t> last;
    for (const std::size_t i : order) {
      ASSERT_TRUE(!last.contains(owners[i]) || last[owners[i]] < i);
      last[owners[i]] = i;
    }
  }
}

}  // namespace
}  // namespace gradwire::fusion
