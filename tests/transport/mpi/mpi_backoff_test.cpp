#include "transport/mpi/mpi_backoff.h"

#include <gtest/gtest.h>

namespace gradwire::transport {
namespace {

using namespace std::chrono_literals;

const MpiBackoff::Time kStart{1h};

TEST(MpiBackoff, StaysAwakeShortlyAfterSomethingCame) {
  MpiBackoff pace(kStart);
  EXPECT_EQ(pace.pause(kStart + 20us, false), 0us);
  EXPECT_GT(pace.pause(kStart + 1ms, false), 0us);
  pace.moved(kStart + 1ms);
  EXPECT_EQ(pace.pause(kStart + 1ms + 20us, false), 0us);
}

TEST(MpiBackoff, WhatComesIsLateByAShareOfTheWaitAtMost) {
  const MpiBackoff pace(kStart);
  for (auto waited = 100us; waited < 1s; waited *= 2) {
    const auto pause = pace.pause(kStart + waited, false);
    EXPECT_GT(pause, 0us);
    EXPECT_LE(pause, waited / 4) << waited.count();
    EXPECT_LE(pause, 1ms) << waited.count();
  }
}

TEST(MpiBackoff, AnIdleRankAsksAThousandTimesASecond) {
  const MpiBackoff pace(kStart);
  EXPECT_EQ(pace.pause(kStart + 10s, false), 1ms);
}

TEST(MpiBackoff, ATransferIsLookedAfterMoreOften) {
  const MpiBackoff pace(kStart);
  EXPECT_LE(pace.pause(kStart + 10s, true), 200us);
  EXPECT_GT(pace.pause(kStart + 10s, true), 0us);
}

}  // namespace
}  // namespace gradwire::transport
