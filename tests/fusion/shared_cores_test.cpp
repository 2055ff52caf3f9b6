#include "fusion/shared_cores.h"

#include <gmock/gmock.h>

#include <limits>
#include <stdexcept>

namespace gradwire::fusion {
namespace {

TEST(CoreSpeed, EveryThreadHasACoreUntilThereAreMore) {
  const CoreModel machine{.cores = 4, .compute_threads = 1, .workers = 2, .servers_share = 1};
  EXPECT_EQ(core_speed(machine, {1, 2, 0}, 2), 1);
  EXPECT_DOUBLE_EQ(core_speed(machine, {2, 2, 0}, 2), 4.0 / 6);
  EXPECT_EQ(core_speed({}, {1e6, 1e6, 1e12}, 2), 1) << "by default there are cores for all";
}

TEST(CoreSpeed, BytesTakeCoresAtTheEndsThatAreHere) {
  CoreModel machine{.cores = 2, .compute_threads = 1, .workers = 2, .servers_share = 0, .byte_seconds = 1e-3};
  EXPECT_DOUBLE_EQ(core_speed(machine, {1, 0, 1000}, 8), 2.0 / 4) << "the workers' ends";
  machine.servers_share = 1;
  EXPECT_DOUBLE_EQ(core_speed(machine, {1, 0, 1000}, 8), 2.0 / 12) << "and those of all workers at servers";
}

TEST(SharedWork, AdvancesAtTheSpeedOfEachTime) {
  SharedWork<int> work;
  EXPECT_FALSE(work.next_end().has_value());
  work.add(0, 2, 7);
  work.add(1, 3, 8);
  EXPECT_DOUBLE_EQ(work.next_end().value(), 2);
  work.set_speed(1, 0.5);  // one second is left of the first, three of the second
  EXPECT_DOUBLE_EQ(work.next_end().value(), 3);
  EXPECT_EQ(work.end(3), 7);
  work.set_speed(3, 1);
  EXPECT_DOUBLE_EQ(work.next_end().value(), 5);
  EXPECT_EQ(work.end(5), 8);
}

TEST(SharedWork, EqualEndsKeepTheOrderInWhichTheyBegan) {
  SharedWork<int> work;
  for (const int task : {3, 1, 2}) work.add(0, 1, task);
  for (const int task : {3, 1, 2}) EXPECT_EQ(work.end(1), task);
}

TEST(CoreModel, RefusesWhatNoMachineIs) {
  for (void (*spoil)(CoreModel&) :
       {+[](CoreModel& m) { m.cores = 0; }, +[](CoreModel& m) { m.workers = 0; },
        +[](CoreModel& m) { m.compute_threads = -1; }, +[](CoreModel& m) { m.servers_share = -1; },
        +[](CoreModel& m) { m.byte_seconds = std::numeric_limits<double>::quiet_NaN(); }}) {
    CoreModel bad{.cores = 2};
    spoil(bad);
    EXPECT_THROW(validate(bad), std::invalid_argument);
  }
  EXPECT_NO_THROW(validate(CoreModel{}));
}

}  // namespace
}  // namespace gradwire::fusion
