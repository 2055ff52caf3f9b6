#include "transport/membership/exchange_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/messenger.h"

namespace gradwire::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string offer(const std::string& name, const std::string& blob) { return name + '\0' + blob; }

TEST(ExchangeCoordinator, TheLastOfferIsAnsweredToEverybody) {
  ExchangeCoordinator desk(3);
  EXPECT_FALSE(desk.take(1, 0, ExchangeAsk::kOffer, offer("init", "b")));
  EXPECT_FALSE(desk.take(0, 0, ExchangeAsk::kOffer, offer("init", "a")));
  const auto reply = desk.take(2, 0, ExchangeAsk::kOffer, offer("init", ""));
  ASSERT_TRUE(reply);
  EXPECT_THAT(reply->workers, ElementsAre(0, 1, 2));
  EXPECT_EQ(reply->answer, ExchangeAnswer::kComplete);
  EXPECT_EQ(reply->sequence, 0u);
  EXPECT_THAT(parse_blobs(reply->payload), ElementsAre("a", "b", ""));
}

TEST(ExchangeCoordinator, WhoAsksHearsAlone) {
  ExchangeCoordinator desk(3);
  desk.take(1, 0, ExchangeAsk::kOffer, offer("init", "b"));
  const auto waiting = desk.take(1, 0, ExchangeAsk::kStatus, "");
  ASSERT_TRUE(waiting);
  EXPECT_THAT(waiting->workers, ElementsAre(1));
  EXPECT_EQ(waiting->answer, ExchangeAnswer::kWaiting);
  EXPECT_THAT(parse_ranks(waiting->payload), ElementsAre(0, 2));

  desk.take(0, 0, ExchangeAsk::kOffer, offer("init", "a"));
  desk.take(2, 0, ExchangeAsk::kOffer, offer("init", "c"));
  const auto complete = desk.take(1, 0, ExchangeAsk::kStatus, "");
  ASSERT_TRUE(complete);
  EXPECT_THAT(complete->workers, ElementsAre(1));
  EXPECT_EQ(complete->answer, ExchangeAnswer::kComplete);
}

TEST(ExchangeCoordinator, WhoWaitsForAWorkerThatHasLeftIsTold) {
  ExchangeCoordinator desk(3);
  desk.take(1, 0, ExchangeAsk::kOffer, offer("init", "b"));
  const auto replies = desk.leave(2);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_THAT(replies[0].workers, ElementsAre(1));
  EXPECT_EQ(replies[0].answer, ExchangeAnswer::kDeserted);
  EXPECT_THAT(replies[0].payload, HasSubstr("worker 2 has left the job"));
  const auto late = desk.take(0, 0, ExchangeAsk::kOffer, offer("init", "a"));
  ASSERT_TRUE(late);
  EXPECT_EQ(late->answer, ExchangeAnswer::kDeserted);
}

TEST(ExchangeCoordinator, DifferentNamesAreAnErrorThatSaysBoth) {
  ExchangeCoordinator desk(2);
  desk.take(1, 0, ExchangeAsk::kOffer, offer("init", "b"));
  try {
    desk.take(0, 0, ExchangeAsk::kOffer, offer("barrier", ""));
    FAIL() << "no error";
  } catch (const TransportError& error) {
    EXPECT_THAT(error.what(), HasSubstr("worker 0 is in 'barrier' while worker 1 is in 'init'"));
  }
}

TEST(ExchangeCoordinator, APayloadWithoutANameIsRefused) {
  ExchangeCoordinator desk(2);
  EXPECT_THROW(desk.take(0, 0, ExchangeAsk::kOffer, "no end"), FrameError);
  EXPECT_THROW(desk.take(0, 0, ExchangeAsk::kOffer, ""), FrameError);
}

}  // namespace
}  // namespace gradwire::transport
