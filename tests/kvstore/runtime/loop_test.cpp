#include "kvstore/runtime/loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace gradwire::kvstore {
namespace {

using testing::ElementsAre;

constexpr auto kNoTick = std::chrono::seconds(20);

TEST(Loop, RunsWhatWasPostedBeforeTheStopAndThenAfterBatch) {
  Loop loop;
  std::vector<std::string> order;
  loop.post([&] { order.emplace_back("a"); });
  loop.post([&] { order.emplace_back("b"); });
  loop.stop();
  loop.post([&] { order.emplace_back("too late"); });
  loop.post_first([&] { order.emplace_back("too late"); });
  loop.run(
      kNoTick, [&] { order.emplace_back("batch"); }, [] {});
  EXPECT_THAT(order, ElementsAre("a", "b", "batch"));
}

TEST(Loop, WhatIsPostedFirstGoesBeforeWhatWaits) {
  Loop loop;
  std::vector<std::string> order;
  loop.post([&] {
    order.emplace_back("a");
    loop.post([&] {
      order.emplace_back("last");
      loop.stop();
    });
    loop.post_first([&] { order.emplace_back("first"); });
  });
  loop.post([&] { order.emplace_back("b"); });
  loop.run(
      kNoTick, [] {}, [] {});
  EXPECT_THAT(order, ElementsAre("a", "first", "b", "last"));
}

TEST(Loop, WhatIsPostedFirstWakesALoopThatHasNothingElse) {
  Loop loop;
  std::vector<std::string> order;
  std::jthread other([&] {
    loop.post_first([&] {
      order.emplace_back("first");
      loop.stop();
    });
  });
  loop.run(
      kNoTick, [] {}, [&] { order.emplace_back("tick"); });
  EXPECT_THAT(order, ElementsAre("first"));
}

TEST(Loop, WakesAtTheTimeItWasTold) {
  Loop loop;
  int batches = 0;
  loop.post([] {});
  loop.run(
      std::chrono::seconds(10),
      [&] {
        if (++batches == 1) loop.wake_at(std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
        if (batches == 2) loop.stop();
      },
      [&] {
        ADD_FAILURE() << "woken by the tick";
        loop.stop();
      });
  EXPECT_GE(batches, 2);
}

}  // namespace
}  // namespace gradwire::kvstore
