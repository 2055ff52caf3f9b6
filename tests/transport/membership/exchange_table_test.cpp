#include "transport/membership/exchange_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradwire::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using State = ExchangeTable::State;

// Two threads of a worker are in two exchanges, and offer again in any order what a break has lost.
TEST(ExchangeTable, AnOfferCountsThatComesBehindALaterOne) {
  ExchangeTable table(2);
  table.offer(6, 0, "init", "a");
  table.offer(5, 0, "init", "b");
  EXPECT_THAT(table.missing(5), ElementsAre(1));
  EXPECT_EQ(table.offer(5, 1, "init", "c"), State::kComplete);
  EXPECT_THAT(table.blobs(5), ElementsAre("b", "c"));
  EXPECT_EQ(table.offer(6, 1, "init", "d"), State::kComplete);
}

TEST(ExchangeTable, AnExchangeThatLacksAnOfferIsNotOverWhereAllAreInALaterOne) {
  ExchangeTable table(2);
  table.offer(0, 1, "init", "b");
  for (const std::uint32_t rank : {0U, 1U}) table.offer(1, rank, "init", "");
  EXPECT_THAT(table.missing(0), ElementsAre(0));
  EXPECT_EQ(table.offer(0, 0, "init", "a"), State::kComplete);
  EXPECT_THAT(table.blobs(0), ElementsAre("a", "b"));
}

TEST(ExchangeTable, AnOfferOfAnExchangeThatIsOverBeginsNone) {
  ExchangeTable table(2);
  for (const std::uint64_t sequence : {0U, 1U}) {
    for (const std::uint32_t rank : {0U, 1U}) table.offer(sequence, rank, "init", "");
  }
  EXPECT_EQ(table.offer(0, 1, "init", ""), State::kWaiting);
  EXPECT_THAT(table.open(), IsEmpty());
  EXPECT_TRUE(table.has_come(0, 1));
}

TEST(ExchangeTable, WhoWaitsForAWorkerThatHasLeftFindsThatAlsoFromALaterExchange) {
  ExchangeTable table(2);
  for (const std::uint64_t sequence : {0U, 1U}) table.offer(sequence, 0, "init", "");
  table.leave(1);
  EXPECT_EQ(table.state(0), State::kDeserted);
  EXPECT_EQ(table.state(1), State::kDeserted);
}

}  // namespace
}  // namespace gradwire::transport
