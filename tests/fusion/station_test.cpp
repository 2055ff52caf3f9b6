#include "fusion/station.h"

#include <gmock/gmock.h>

namespace gradwire::fusion {
namespace {

TEST(Station, TakesUrgentJobsFirstAndEqualOnesInOrder) {
  Station station(1, 0);
  EXPECT_FALSE(station.begin());
  for (const auto& [id, priority] : {std::pair{1, -5}, {2, -1}, {3, -1}}) {
    station.submit({static_cast<std::uint64_t>(id), priority, 1.0});
  }
  EXPECT_EQ(station.begin()->id, 2U);
  EXPECT_FALSE(station.begin()) << "its one thread is busy";
  station.end();
  EXPECT_EQ(station.begin()->id, 3U);
  station.end();
  EXPECT_EQ(station.begin()->id, 1U);
}

TEST(Station, HasAsManyThreadsAsItIsGiven) {
  Station station(2, 0);
  for (std::uint64_t id = 0; id < 3; ++id) station.submit({id, 0, 1.0});
  EXPECT_TRUE(station.begin());
  EXPECT_TRUE(station.begin());
  EXPECT_FALSE(station.begin());
}

TEST(Station, AJobThatWakesAThreadTakesLonger) {
  Station station(2, 0.5);
  for (std::uint64_t id = 0; id < 3; ++id) station.submit({id, 0, 1.0});
  EXPECT_EQ(station.begin()->seconds, 1.5);
  EXPECT_EQ(station.begin()->seconds, 1.5);
  station.submit({3, 0, 1.0});
  station.end();
  EXPECT_EQ(station.begin()->seconds, 1.0) << "both threads were awake when the third and the fourth came";
}

}  // namespace
}  // namespace gradwire::fusion
