#include "transport/mpi/mpi_pace.h"

#include <gtest/gtest.h>

namespace gradwire::transport {
namespace {

using namespace std::chrono_literals;

const MpiPace::Time kStart{1h};

TEST(MpiPace, StaysAwakeShortlyAfterSomethingCame) {
  MpiPace pace(kStart);
  EXPECT_EQ(pace.pause(kStart + 20us, false), 0us);
  EXPECT_GT(pace.pause(kStart + 1ms, false), 0us);
  pace.moved(kStart + 1ms);
  EXPECT_EQ(pace.pause(kStart + 1ms + 20us, false), 0us);
}

TEST(MpiPace, WhatComesIsLateByAShareOfTheWaitAtMost) {
  const MpiPace pace(kStart);
  for (auto waited = 100us; waited < 1s; waited *= 2) {
    const auto pause = pace.pause(kStart + waited, false);
    EXPECT_GT(pause, 0us);
    EXPECT_LE(pause, waited / 4) << waited.count();
    EXPECT_LE(pause, 1ms) << waited.count();
  }
}

TEST(MpiPace, AnIdleRankAsksAThousandTimesASecond) {
  const MpiPace pace(kStart);
  EXPECT_EQ(pace.pause(kStart + 10s, false), 1ms);
}

TEST(MpiPace, ATransferIsLookedAfterMoreOften) {
  const MpiPace pace(kStart);
  EXPECT_LE(pace.pause(kStart + 10s, true), 200us);
  EXPECT_GT(pace.pause(kStart + 10s, true), 0us);
}

}  // namespace
}  // namespace gradwire::transport
