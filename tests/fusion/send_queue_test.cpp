#include "fusion/send_queue.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <tuple>

namespace gradwire::fusion {
namespace {

// The rule written down as a sort: of the items whose destination has credit, the one of highest priority;
// among those, the destination served least recently; of its items, the one that came first.
class NaiveQueue {
 public:
  NaiveQueue(std::uint32_t destinations, std::uint64_t credit)
      : credit_(credit), in_flight_(destinations, 0) {
    start_at(0);
  }
  void start_at(std::uint32_t destination) {
    for (std::size_t i = 0; i < in_flight_.size(); ++i) {
      const auto d = static_cast<std::uint32_t>((destination + i) % in_flight_.size());
      std::erase(least_recent_first_, d);
      least_recent_first_.push_back(d);
    }
  }
  void push(const SendItem& item) { waiting_.push_back(item); }
  std::optional<SendItem> pop() {
    auto rank = [&](const SendItem& item) {
      const auto turn =
          std::ranges::find(least_recent_first_, item.destination) - least_recent_first_.begin();
      return std::tuple(in_flight_[item.destination] >= credit_, -std::int64_t{item.priority}, turn);
    };
    std::vector<SendItem> sorted = waiting_;
    std::ranges::stable_sort(sorted, {}, rank);
    if (sorted.empty() || in_flight_[sorted.front().destination] >= credit_) return std::nullopt;
    const SendItem item = sorted.front();
    waiting_.erase(std::ranges::find(waiting_, item));
    std::erase(least_recent_first_, item.destination);
    least_recent_first_.push_back(item.destination);
    in_flight_[item.destination] += item.bytes;
    return item;
  }
  void release(const SendItem& item) { in_flight_[item.destination] -= item.bytes; }
  std::uint64_t in_flight(std::uint32_t destination) const { return in_flight_[destination]; }
  bool empty() const { return waiting_.empty(); }

 private:
  std::uint64_t credit_;
  std::vector<SendItem> waiting_;  // in order of arrival
  std::vector<std::uint64_t> in_flight_;
  std::vector<std::uint32_t> least_recent_first_;
};

SendItem random_item(std::mt19937& random, std::uint64_t id, std::uint32_t destinations) {
  return {id, static_cast<std::int32_t>(random() % 5) - 2,
          static_cast<std::uint32_t>(random() % destinations), random() % 60};
}

TEST(SendQueue, EqualsTheNaiveModelOnRandomTraffic) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const std::uint32_t destinations = 1 + random() % 6;
    const std::uint64_t credit = 1 + random() % 100;
    SendQueue queue(destinations, credit);
    NaiveQueue model(destinations, credit);
    std::vector<SendItem> on_their_way;
    std::uint64_t taken = 0;
    std::uint64_t pushed = 0;
    auto step = [&](unsigned dice) {
      if (dice < 45) {
        const SendItem item = random_item(random, pushed++, destinations);
        queue.push(item);
        model.push(item);
      } else if (dice < 47) {
        const std::uint32_t first = random() % destinations;
        queue.start_at(first);
        model.start_at(first);
      } else if (dice < 75) {
        const std::optional<SendItem> item = queue.pop();
        ASSERT_EQ(item, model.pop());
        if (!item) return;
        ++taken;
        on_their_way.push_back(*item);
        ASSERT_LT(queue.in_flight_bytes(item->destination) - item->bytes, credit)
            << "more than one item over";
      } else if (!on_their_way.empty()) {
        std::swap(on_their_way[random() % on_their_way.size()], on_their_way.back());
        queue.release(on_their_way.back().destination, on_their_way.back().bytes);
        model.release(on_their_way.back());
        on_their_way.pop_back();
      }
      for (std::uint32_t d = 0; d < destinations; ++d)
        ASSERT_EQ(queue.in_flight_bytes(d), model.in_flight(d));
      ASSERT_EQ(queue.empty(), model.empty());
    };
    for (int i = 0; i < 400; ++i) ASSERT_NO_FATAL_FAILURE(step(random() % 100));
    for (int i = 0; !queue.empty(); ++i)
      ASSERT_NO_FATAL_FAILURE(step(47 + i % 53));  // pops and releases only
    ASSERT_EQ(taken, pushed) << "an item was lost";
  }
}

TEST(SendQueue, AnUrgentItemOvertakesAllThatHasNotLeft) {
  SendQueue queue(1, 100);
  for (std::uint64_t id = 0; id < 10; ++id) queue.push({id, 0, 0, 50});
  EXPECT_EQ(queue.pop()->id, 0U);
  EXPECT_EQ(queue.pop()->id, 1U);
  EXPECT_EQ(queue.pop(), std::nullopt) << "credit is used up";
  queue.push({99, 7, 0, 50});
  EXPECT_EQ(queue.pop(), std::nullopt) << "urgency does not lift the credit";
  queue.release(0, 50);
  EXPECT_EQ(queue.pop()->id, 99U);
  queue.release(0, 50);
  EXPECT_EQ(queue.pop()->id, 2U);
}

TEST(SendQueue, AFullDestinationDoesNotHoldUpTheOthers) {
  SendQueue queue(2, 10);
  queue.push({1, 5, 0, 10});
  queue.push({2, 5, 0, 10});
  queue.push({3, 0, 1, 10});
  EXPECT_EQ(queue.pop()->id, 1U);
  EXPECT_EQ(queue.pop()->id, 3U);
  EXPECT_EQ(queue.pop(), std::nullopt);
  EXPECT_FALSE(queue.empty());
}

TEST(SendQueue, AnItemLargerThanTheCreditGoesAlone) {
  SendQueue queue(1, 10);
  queue.push({1, 0, 0, 1000});
  queue.push({2, 0, 0, 1});
  EXPECT_EQ(queue.pop()->id, 1U);
  EXPECT_EQ(queue.pop(), std::nullopt);
  queue.release(0, 1000);
  EXPECT_EQ(queue.pop()->id, 2U);
}

TEST(SendQueue, EqualsRotateFromTheDestinationToStartAt) {
  SendQueue queue(3, 1000);
  queue.start_at(1);
  for (std::uint32_t d = 0; d < 3; ++d) {
    for (int i = 0; i < 2; ++i) queue.push({d, 0, d, 1});
  }
  std::vector<std::uint32_t> order;
  while (const auto item = queue.pop()) order.push_back(item->destination);
  EXPECT_THAT(order, testing::ElementsAre(1, 2, 0, 1, 2, 0));
}

// A rotating index would be thrown back by each urgent item and serve destination 1 for ever.
TEST(SendQueue, UrgentTrafficToOneDoesNotStarveOneOfTheOthers) {
  SendQueue queue(3, 1U << 30);
  for (int i = 0; i < 100; ++i) {
    queue.push({1, 0, 1, 1});
    queue.push({2, 0, 2, 1});
  }
  std::vector<int> served(3, 0);
  for (int i = 0; i < 100; ++i) {
    queue.push({0, 1, 0, 1});
    ++served[queue.pop()->destination];
    ++served[queue.pop()->destination];
  }
  EXPECT_THAT(served, testing::ElementsAre(100, 50, 50));
}

TEST(SendQueue, WhatIsOvertakenAgainAndAgainGetsItsTurn) {
  constexpr std::uint64_t kBytes = 1ULL << 20;
  constexpr std::uint64_t kUrgentPieces = 10;
  constexpr std::uint64_t kPatient = 1'000;
  SendQueue queue(1, kBytes);
  queue.push({kPatient, 0, 0, kBytes, kPatient});
  queue.push({kPatient + 1, 0, 0, kBytes, kPatient + 1});
  const auto overtakings = [&] {  // an urgent piece is there whenever one may go
    for (std::uint64_t count = 0;; ++count) {
      queue.push({count, 1, 0, kBytes, count % kUrgentPieces});
      const auto item = queue.pop();
      queue.release(0, kBytes);
      if (item->id >= kPatient) return count;
    }
  };
  EXPECT_EQ(overtakings(), kUrgentPieces + kPatienceBytes / kBytes);
  EXPECT_GT(overtakings(), kUrgentPieces) << "one turn, and urgent pieces go first again";
  EXPECT_TRUE(queue.pop().has_value()) << "what was put off is still there";
}

// A model may be of any size: its front layers go first, all of them.
TEST(SendQueue, APieceThatOvertakesOnceUsesUpNoPatience) {
  SendQueue queue(1, 1);
  constexpr std::uint64_t kPieces = 1'000;
  queue.push({kPieces, 0, 0, kPatienceBytes, kPieces});
  for (std::uint64_t id = 0; id < kPieces; ++id) queue.push({id, 1, 0, kPatienceBytes, id});
  for (std::uint64_t id = 0; id <= kPieces; ++id) {
    EXPECT_EQ(queue.pop()->id, id);
    queue.release(0, kPatienceBytes);
  }
}

TEST(SendQueue, RejectsMisuseByName) {
  EXPECT_THROW(SendQueue(0, 1), std::invalid_argument);
  EXPECT_THROW(SendQueue(1, 0), std::invalid_argument);
  SendQueue queue(2, 10);
  EXPECT_THROW(queue.push({0, 0, 2, 1}), std::invalid_argument);
  EXPECT_THROW(queue.start_at(2), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(queue.in_flight_bytes(2)), std::invalid_argument);
  try {
    queue.release(1, 3);
    FAIL() << "gave back more than was in flight";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "send queue: destination 1 gives back 3 bytes; expected at most the 0 in flight");
  }
  EXPECT_EQ(queue.in_flight_bytes(1), 0U);
}

TEST(SendQueue, ADestinationThatIsHeldGetsWhatCannotBeHeldAndWhatIsMoreUrgent) {
  SendQueue queue(2, 100);
  const auto push = [&](std::uint64_t id, std::int32_t priority, std::uint32_t destination,
                        bool can_be_held) {
    queue.push(
        {.id = id, .priority = priority, .destination = destination, .bytes = 1, .can_be_held = can_be_held});
  };
  push(1, 5, 0, true);
  EXPECT_EQ(queue.pop()->id, 1u);
  queue.hold(0, true);
  push(2, 5, 0, true);
  push(3, 0, 1, true);
  EXPECT_EQ(queue.pop()->id, 3u) << "another destination's";
  EXPECT_FALSE(queue.pop());
  push(4, 6, 0, true);
  push(5, 7, 0, false);
  EXPECT_EQ(queue.pop()->id, 5u);
  EXPECT_EQ(queue.pop()->id, 4u);
  EXPECT_FALSE(queue.pop());
  EXPECT_FALSE(queue.empty());
  queue.hold(0, false);
  EXPECT_EQ(queue.pop()->id, 2u);
  EXPECT_THROW(queue.hold(2, true), std::invalid_argument);
}

}  // namespace
}  // namespace gradwire::fusion
