#include "transport/mpi/mpi_watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace gradwire::transport {
namespace {

using namespace std::chrono_literals;
using Clock = MpiWatchdog::Clock;

TEST(MpiWatchdog, ALongStayInMpiIsToldOnce) {
  std::atomic<int> told{0};
  MpiWatchdog watch(100ms, [&] { ++told; });
  const auto entered = Clock::now();
  const MpiWatchdog::Stay stay(watch, entered);
  while (told == 0 && Clock::now() - entered < 20s) std::this_thread::sleep_for(1ms);
  EXPECT_GE(Clock::now() - entered, 100ms);
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(told, 1);
}

TEST(MpiWatchdog, ShortStaysAndTimesOutsideAreNothingToTell) {
  std::atomic<int> told{0};
  {
    MpiWatchdog watch(200ms, [&] { ++told; });
    for (int i = 0; i < 40; ++i) {
      const MpiWatchdog::Stay stay(watch, Clock::now());
      std::this_thread::sleep_for(10ms);
    }
    std::this_thread::sleep_for(400ms);
  }
  EXPECT_EQ(told, 0);
}

}  // namespace
}  // namespace gradwire::transport
