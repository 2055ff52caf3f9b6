#include "transport/membership/wait_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/frame.h"

namespace gradwire::transport {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::ThrowsMessage;

const std::string kFirst = "key 0 round 0", kSecond = "key 1 round 0";

WaitReport in_exchange(const std::string& name, std::uint64_t number = 0) {
  return {1, {{name, {}, number}}, {}, {}};
}
WaitReport in_round(const std::string& round) {
  return {1, {{"push_pull of " + round, {round}, {}}}, {}, {}};
}
WaitReport without(WaitReport report, const std::string& round) {
  report.not_begun.push_back(round);
  return report;
}
WaitReport with(WaitReport report, const std::string& round) {
  report.begun.push_back(round);
  return report;
}

TEST(WaitReport, ComesBackFromItsText) {
  const WaitReport report{
      17, {{"'barrier'", {}, 4}, {"pull of key 'w'", {kFirst, kSecond}, {}}}, {kFirst}, {kSecond}};
  EXPECT_EQ(parse_wait_report(to_text(report)), report);
  EXPECT_EQ(parse_wait_report(to_text({})), WaitReport());
  EXPECT_EQ(parse_wait_question(wait_question({kFirst, kSecond})), (std::set{kFirst, kSecond}));
}

TEST(WaitReport, IsReadAsHostile) {
  EXPECT_EQ(parse_wait_report("new=1\ncalls=2\n").calls, 2U);
  for (const char* text : {"calls", "calls=x\n", "needs=a\n", "exchange=1\n", "in=a\nexchange=b\n"})
    EXPECT_THROW(parse_wait_report(text), FrameError) << text;
  EXPECT_THROW(parse_wait_report(std::string(70'000, 'a')), FrameError);
  const WaitReport needy{1, {{"blobs", std::vector<std::string>(kMostNeeds + 1, kFirst), {}}}, {}, {}};
  EXPECT_THROW(parse_wait_report(to_text(needy)), FrameError);
  const WaitReport strange{0, {{"a key 'x\ny' " + std::string(9'000, 'z'), {}, 1}}, {}, {}};
  EXPECT_EQ(parse_wait_report(to_text(strange)).waits.size(), 1U);
}

class Graph : public testing::Test {
 protected:
  /// As often as it takes to count, and then what it was asked.
  void say(std::uint32_t worker, const WaitReport& report) {
    for (int i = 0; i < WaitGraph::kTimes; ++i) graph_.take(worker, {report.calls, report.waits, {}, {}});
    if (!report.begun.empty() || !report.not_begun.empty()) graph_.take(worker, report);
  }
  void meet(std::uint32_t worker, const std::string& name) { exchanges_.offer(next_, worker, name, ""); }
  std::vector<std::uint32_t> stuck() { return graph_.deadlock(exchanges_).workers; }

  std::uint64_t next_ = 0;
  ExchangeTable exchanges_{3};
  WaitGraph graph_;
};

TEST_F(Graph, ARoundAndAnExchangeWaitForEachOther) {
  meet(0, "barrier");
  say(0, in_exchange("'barrier'"));
  EXPECT_THAT(graph_.take_questions(), IsEmpty());
  say(1, in_round(kFirst));
  EXPECT_THAT(graph_.take_questions(), ElementsAre(Pair(0, ElementsAre(kFirst))));
  EXPECT_THAT(graph_.take_questions(), IsEmpty()) << "asked once";
  EXPECT_THAT(stuck(), IsEmpty()) << "what is not known counts as begun";
  say(0, without(in_exchange("'barrier'"), kFirst));
  EXPECT_THAT(stuck(), ElementsAre(0, 1)) << "whatever worker 2 does";
  say(2, in_round(kFirst));
  const Deadlock found = graph_.deadlock(exchanges_);
  EXPECT_THAT(found.workers, ElementsAre(0, 1, 2));
  EXPECT_THAT(found.text,
              AllOf(HasSubstr("worker 0 in 'barrier'; worker 1 and worker 2 in push_pull of key 0"),
                    HasSubstr("the same calls in the same order")));
}

TEST_F(Graph, WhatIsUnderWayIsNoDeadlock) {
  meet(0, "barrier");
  say(0, with(in_exchange("'barrier'"), kFirst));
  say(1, in_round(kFirst));
  say(2, in_round(kFirst));
  EXPECT_THAT(stuck(), IsEmpty());
}

TEST_F(Graph, WhatWasSaidBeforeAnotherCallIsVoid) {
  for (std::uint32_t worker = 1; worker < 3; ++worker) say(worker, in_round(kFirst));
  say(0, without(in_exchange("'barrier'"), kFirst));
  WaitReport later = in_exchange("'barrier'");
  later.calls = 2;
  meet(0, "barrier");
  say(0, later);
  EXPECT_THAT(stuck(), IsEmpty());
  EXPECT_THAT(graph_.take_questions(), ElementsAre(Pair(0, ElementsAre(kFirst)))) << "asked again";
  say(0, {2, {}, {}, {}});
  EXPECT_THAT(stuck(), IsEmpty()) << "it goes on";
}

TEST_F(Graph, TwoRoundsWaitForEachOther) {
  say(0, without(in_round(kFirst), kSecond));
  say(1, without(in_round(kSecond), kFirst));
  EXPECT_THAT(stuck(), ElementsAre(0, 1));
}

TEST_F(Graph, OneThreadThatGoesOnIsEnough) {
  WaitReport two = without(in_round(kFirst), kSecond);
  two.waits.push_back({"blobs", {}, {}});
  say(0, two);
  say(1, without(in_round(kSecond), kFirst));
  EXPECT_THAT(stuck(), IsEmpty());
}

TEST_F(Graph, AnExchangeThatAllAreInIsNone) {
  for (std::uint32_t worker = 0; worker < 3; ++worker) {
    meet(worker, "barrier");
    say(worker, in_exchange("'barrier'"));
  }
  EXPECT_THAT(stuck(), IsEmpty());
}

TEST_F(Graph, WhoSaysThatItIsInAnExchangeIsThere) {
  for (std::uint32_t worker = 0; worker < 3; ++worker) say(worker, in_exchange("'barrier'"));
  EXPECT_THAT(stuck(), IsEmpty()) << "what they offer there comes behind what they say";
}

/// Its report was under way while it went on, to another exchange.
TEST_F(Graph, WhatAWorkerSaidOfAnExchangeIsNotTakenForTheNext) {
  for (std::uint32_t worker = 0; worker < 3; ++worker) meet(worker, "barrier");
  ++next_;
  meet(0, "barrier");
  say(0, without(in_exchange("'barrier'"), kFirst));
  say(1, in_round(kFirst));
  say(2, in_round(kFirst));
  EXPECT_THAT(stuck(), IsEmpty());
  say(0, without(in_exchange("'barrier'", next_), kFirst));
  EXPECT_THAT(stuck(), ElementsAre(0, 1, 2));
}

/// A thread of it may not have made its first call yet.
TEST_F(Graph, WhoHasJustSaidItDoesNotCount) {
  say(0, without(in_round(kFirst), kSecond));
  graph_.take(1, without(in_round(kSecond), kFirst));
  for (int times = 1; times < WaitGraph::kTimes; ++times) {
    graph_.take(1, in_round(kSecond));
    EXPECT_THAT(stuck(), IsEmpty());
  }
  EXPECT_TRUE(graph_.take(1, in_round(kSecond)));
  EXPECT_THAT(stuck(), ElementsAre(0, 1));
  EXPECT_FALSE(graph_.take(1, in_round(kSecond))) << "no news";
}

TEST_F(Graph, WhoNeedsSomethingElseByNowBeginsAnew) {
  say(0, without(in_round(kFirst), kSecond));
  say(1, without(in_round("key 2 round 0"), kFirst));
  graph_.take(1, in_round(kSecond));
  EXPECT_THAT(stuck(), IsEmpty());
}

TEST_F(Graph, WhoHasLeftIsForgotten) {
  say(0, without(in_round(kFirst), kSecond));
  say(1, without(in_round(kSecond), kFirst));
  graph_.forget(1);
  EXPECT_THAT(stuck(), IsEmpty());
}

}  // namespace
}  // namespace gradwire::transport
