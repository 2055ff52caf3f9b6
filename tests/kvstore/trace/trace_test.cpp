// The sink of spans: what is noted comes back, whatever thread noted it; what is dropped is counted.
#include "kvstore/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "kvstore/runtime/ticket.h"
#include "kvstore/server/server_trace.h"

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

Span span_of(std::uint64_t key, std::chrono::nanoseconds begin) {
  Span span;
  span.begin = TraceClock::time_point(begin);
  span.end = span.begin + 5ns;
  span.key = key;
  return span;
}

std::vector<std::uint64_t> keys_of(const std::vector<Span>& spans) {
  std::vector<std::uint64_t> keys;
  for (const Span& span : spans) keys.push_back(span.key);
  return keys;
}

TEST(Trace, GivesSpansBackOnceInOrderOfTheirBegin) {
  Trace trace;
  trace.add(span_of(1, 30ns));
  trace.add(span_of(2, 10ns));
  std::jthread([&] { trace.add(span_of(3, 20ns)); }).join();
  EXPECT_THAT(keys_of(trace.take_spans()), ElementsAre(2, 3, 1));
  EXPECT_THAT(trace.take_spans(), IsEmpty());
  trace.add(span_of(4, 40ns));
  EXPECT_THAT(keys_of(trace.take_spans()), ElementsAre(4));
}

TEST(Trace, KeepsTheFirstSpansOfAThreadAndCountsTheRest) {
  Trace trace({.spans_per_thread = 3});
  for (std::uint64_t i = 0; i < 8; ++i) trace.add(span_of(i, std::chrono::nanoseconds(1 + i)));
  std::jthread([&] { trace.add(span_of(99, 50ns)); }).join();  // has room of its own
  EXPECT_EQ(trace.dropped(), 5U);
  EXPECT_THAT(keys_of(trace.take_spans()), ElementsAre(0, 1, 2, 99));
  trace.add(span_of(7, 70ns));  // there is room again
  EXPECT_THAT(keys_of(trace.take_spans()), ElementsAre(7));
  EXPECT_EQ(trace.dropped(), 5U);
}

TEST(Trace, GivesBuffersToSoManyThreadsOnly) {
  Trace trace({.most_threads = 1});
  trace.add(span_of(1, 1ns));
  std::jthread([&] { trace.add(span_of(2, 2ns)); }).join();
  EXPECT_EQ(trace.dropped(), 1U);
  EXPECT_THAT(keys_of(trace.take_spans()), ElementsAre(1));
}

TEST(Trace, LosesNothingOfManyThreadsWhileItIsEmptied) {
  constexpr std::uint64_t kThreads = 6, kEach = 20'000;
  Trace trace({.spans_per_thread = 512});
  std::vector<std::uint64_t> seen(kThreads * kEach, 0);
  std::uint64_t taken = 0;
  const auto empty = [&] {
    for (const Span& span : trace.take_spans()) {
      ASSERT_EQ(span.end - span.begin, 5ns);  // not half of one and half of another
      ++seen.at(span.key);
      ++taken;
    }
  };
  {
    std::atomic<std::uint64_t> running{kThreads};
    std::vector<std::jthread> threads;
    for (std::uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (std::uint64_t i = 0; i < kEach; ++i)
          trace.add(span_of(t * kEach + i, std::chrono::nanoseconds(1 + i)));
        --running;
      });
    }
    while (running > 0) empty();
  }
  empty();
  EXPECT_EQ(taken + trace.dropped(), kThreads * kEach);
  EXPECT_GE(taken, kThreads * 512);
  EXPECT_EQ(std::ranges::count_if(seen, [](std::uint64_t times) { return times > 1; }), 0);
}

TEST(Trace, AddsUpEachStageWhetherSpansAreKeptOrNot) {
  Trace trace({.spans_per_thread = 2});
  Span sum = span_of(1, 1ns);
  sum.stage = Stage::kSum;
  for (int i = 0; i < 5; ++i) trace.add(sum);
  std::jthread([&] { trace.add(sum); }).join();
  trace.take_spans();
  trace.add(span_of(2, 1ns));
  EXPECT_EQ(trace.stage_times()[static_cast<std::size_t>(Stage::kSum)], 6 * 5ns);
  EXPECT_EQ(trace.stage_times()[static_cast<std::size_t>(Stage::kReady)], 5ns);
}

TEST(Trace, KeepsTheSpansOfTwoTracesApart) {
  Trace one, two;
  for (std::uint64_t i = 0; i < 4; ++i)
    (i % 2 == 0 ? one : two).add(span_of(i, std::chrono::nanoseconds(1 + i)));
  EXPECT_THAT(keys_of(one.take_spans()), ElementsAre(0, 2));
  EXPECT_THAT(keys_of(two.take_spans()), ElementsAre(1, 3));
}

TEST(Trace, TellsTimesByItsOwnClock) {
  Trace trace({.clock_offset = 50ms});
  trace.add(span_of(1, 7ns));
  EXPECT_EQ(trace.take_spans().front().begin.time_since_epoch(), 50ms + 7ns);
}

TEST(Trace, LeavesOutWhatBeganWhileItWasOff) {
  const auto trace = std::make_shared<Trace>();
  const Tracer tracer(trace, Tier::kJob);
  Span span = span_of(1, 0ns);
  span.begin = tracer.now();  // the epoch
  trace->start();
  tracer.add(span);
  EXPECT_THAT(trace->take_spans(), IsEmpty());
}

TEST(Trace, StartForgetsWhatCameBefore) {
  Trace trace({.spans_per_thread = 1});
  trace.start();
  const auto before = TraceClock::now();
  for (int i = 0; i < 3; ++i) trace.add(span_of(1, before.time_since_epoch()));
  trace.add_reading({});
  trace.stop();
  EXPECT_EQ(trace.dropped(), 2U);
  trace.start();
  EXPECT_EQ(trace.dropped(), 0U);
  EXPECT_THAT(trace.readings(), IsEmpty());
  trace.add(span_of(2, before.time_since_epoch()));  // begun before the pause, ended after it
  EXPECT_THAT(trace.take_spans(), IsEmpty());
  trace.add(span_of(3, TraceClock::now().time_since_epoch()));
  EXPECT_THAT(keys_of(trace.take_spans()), ElementsAre(3));
}

TEST(ServerTrace, WhatFailsHasNoSumAndNoEncodingOfItsReply) {
  const auto trace = std::make_shared<Trace>();
  trace->start();
  ServerTrace server(Tracer(trace, Tier::kJob));
  const transport::FrameHeader header;
  using Moment = Aggregator::Moment;
  for (const Moment moment : {Moment::kAllHere, Moment::kSummed, Moment::kAnswerReady})
    server.on(moment, header);
  EXPECT_EQ(trace->take_spans().size(), 2U);
  for (const Moment moment : {Moment::kAllHere, Moment::kAnswerReady}) server.on(moment, header);  // it threw
  EXPECT_THAT(trace->take_spans(), IsEmpty());
  server.on(Moment::kAllHere, header);
  trace->stop();
  server.on(Moment::kSummed, header);
  trace->start();
  server.on(Moment::kAnswerReady, header);
  EXPECT_THAT(trace->take_spans(), IsEmpty());
}

TEST(Tracer, WithoutATraceIsOff) {
  const Tracer tracer;
  EXPECT_FALSE(tracer.is_on());
  EXPECT_EQ(tracer.now(), TraceClock::time_point());
  tracer.name_key(0, "nobody hears");
}

TEST(TicketWait, IsNotedOnceFromTheFirstSliceToTheEnd) {
  const auto trace = std::make_shared<Trace>();
  trace->start();
  const Ticket ticket;
  Span wait;
  wait.key = 5;
  wait.stage = Stage::kWait;
  ticket.note_wait(Tracer(trace, Tier::kHost), wait);
  EXPECT_FALSE(ticket.wait_for(20ms));
  wait.step = 3;  // known only now
  ticket.note_wait(Tracer(trace, Tier::kHost), wait);
  EXPECT_FALSE(ticket.wait_for(20ms));
  ticket.succeed();
  EXPECT_TRUE(ticket.wait_for(20ms));
  EXPECT_TRUE(ticket.wait_for(20ms));
  const auto spans = trace->take_spans();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].key, 5U);
  EXPECT_EQ(spans[0].step, 3U);
  EXPECT_EQ(spans[0].tier, Tier::kHost);
  EXPECT_GE(spans[0].end - spans[0].begin, 40ms);
}

}  // namespace
}  // namespace gradwire::kvstore
