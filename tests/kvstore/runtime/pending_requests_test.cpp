#include "kvstore/runtime/pending_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace gradwire::kvstore {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;
using transport::Role;
using Names = std::vector<std::string>;

constexpr PendingRequests::Clock::time_point kStart{};

class Requests : public testing::Test {
 protected:
  PendingRequests::Handle begin(const std::string& name, PendingRequests::Clock::time_point now = kStart,
                                bool is_delivery = false) {
    return pending_.begin([name] { return name + " has"; }, now, is_delivery);
  }
  void add(PendingRequests::Handle operation, std::uint64_t number, std::uint32_t server,
           std::vector<std::uint32_t> awaited = {}) {
    const auto note = [this, operation, number] {
      repeated_.push_back(operation->name() + ' ' + std::to_string(number));
    };
    pending_.add(operation, number, {server, {1s, 10s}, note, std::move(awaited)}, kStart);
  }
  Names take_repeated() { return std::exchange(repeated_, {}); }

  Names repeated_;
  PendingRequests pending_{Role::kServer, {60s, 600s}};
};

TEST_F(Requests, AreRepeatedSoonForTheFirstTimeAndLaterAfterThat) {
  const auto a = begin("a");
  add(a, 0, 0);
  add(a, 1, 1);
  pending_.retry(kStart + 999ms);
  EXPECT_THAT(take_repeated(), IsEmpty());
  pending_.retry(kStart + 1s);
  EXPECT_THAT(take_repeated(), ElementsAre("a has 0", "a has 1"));
  pending_.answered(a, 0);
  pending_.retry(kStart + 10'999ms);
  EXPECT_THAT(take_repeated(), IsEmpty()) << "the time counts from the last sending";
  pending_.retry(kStart + 11s);
  EXPECT_THAT(take_repeated(), ElementsAre("a has 1"));
}

TEST_F(Requests, WaitTwiceAsLongEachTimeThatNothingIsHeard) {
  const auto a = begin("a");
  add(a, 0, 0);
  auto now = kStart;
  for (const auto patience : {1s, 10s, 20s, 40s, 80s, 80s}) {
    pending_.retry(now + patience - 1ms);
    EXPECT_THAT(take_repeated(), IsEmpty()) << patience.count();
    now += patience;
    pending_.retry(now);
    EXPECT_THAT(take_repeated(), ElementsAre("a has 0")) << patience.count();
  }
  PendingRequests::heard(a->requests.at(0));
  pending_.retry(now + 1s);
  EXPECT_THAT(take_repeated(), ElementsAre("a has 0")) << "the server is there";
  pending_.ask_again(0, now + 2s);
  EXPECT_THAT(take_repeated(), ElementsAre("a has 0"));
  pending_.retry(now + 3s);
  EXPECT_THAT(take_repeated(), ElementsAre("a has 0")) << "another server was silent";
}

TEST_F(Requests, ToOneServerAreSentAgainToWhoTakesItsPlace) {
  add(begin("a"), 0, 0);
  const auto b = begin("b");
  add(b, 0, 1);
  add(b, 1, 0);
  pending_.ask_again(1, kStart);
  EXPECT_THAT(take_repeated(), ElementsAre("b has 0"));
  EXPECT_TRUE(pending_.awaits_server(1));
  pending_.answered(b, 0);
  EXPECT_FALSE(pending_.awaits_server(1));
  EXPECT_TRUE(pending_.awaits_server(0));
}

TEST_F(Requests, AskedAgainReplaceTheFirst) {
  const auto a = begin("a");
  add(a, 0, 0, {2});
  add(a, 0, 0);
  EXPECT_EQ(a->requests.size(), 1);
  EXPECT_THAT(a->requests.at(0).awaited, IsEmpty());
}

TEST_F(Requests, ThatAreSlowAreWarnedOfOnceWithThoseWhoAreAwaited) {
  const auto a = begin("a");
  add(a, 0, 0, {2});
  add(a, 1, 1, {1, 2});
  EXPECT_THAT(pending_.warnings(kStart + 59s), IsEmpty());
  EXPECT_THAT(pending_.warnings(kStart + 60s), ElementsAre("a has waited 60 s for worker 1, 2"));
  EXPECT_THAT(pending_.warnings(kStart + 61s), IsEmpty());
  pending_.end(a);
  EXPECT_TRUE(pending_.idle());
  EXPECT_THAT(pending_.warnings(kStart + 61s), IsEmpty());
  add(begin("a"), 0, 0, {2});
  EXPECT_THAT(pending_.warnings(kStart + 62s), ElementsAre("a has waited 62 s for worker 2"));
}

TEST_F(Requests, GetAMomentMoreWhileNobodyHasSaidWhoIsAwaited) {
  const auto a = begin("a");
  add(a, 0, 1);
  EXPECT_THAT(pending_.warnings(kStart + 60'999ms), IsEmpty());
  EXPECT_THAT(pending_.warnings(kStart + 61s), ElementsAre("a has waited 61 s for server 1"));
}

TEST_F(Requests, OfOneNameAreWarnedOfAsOne) {
  add(begin("all_gather", kStart + 1s), 0, 0, {2});
  add(begin("all_gather"), 0, 0, {0});
  add(begin("all_gather", kStart, true), 0, 0, {1});
  EXPECT_THAT(pending_.warnings(kStart + 61s), ElementsAre("all_gather has waited 61 s for worker 0, 2"))
      << "who has not sent has not received either";
  EXPECT_THAT(pending_.warnings(kStart + 90s), IsEmpty());
}

TEST_F(Requests, ThatDeliverSayWhoHasNotTakenWhatWasSent) {
  add(begin("broadcast", kStart, true), 0, 0, {0, 2});
  EXPECT_THAT(pending_.warnings(kStart + 60s),
              ElementsAre("broadcast has waited 60 s for worker 0, 2 to receive what was sent"));
}

TEST_F(Requests, AreGivenUpInTheEnd) {
  add(begin("a"), 0, 0);
  add(begin("b", kStart + 1s), 0, 0, {3});
  EXPECT_EQ(pending_.overdue(kStart + 599s), std::nullopt);
  EXPECT_EQ(pending_.overdue(kStart + 600s), "a has waited 600 s for server 0");
}

TEST_F(Requests, AnOperationWithoutOneIsNotForgotten) {
  begin("a");
  EXPECT_EQ(pending_.overdue(kStart + 600s), "a has waited 600 s for this worker's own codec threads");
}

TEST(RequestsOfPeers, NameServersAsTheWorkersThatHostThem) {
  PendingRequests pending(Role::kWorker, {60s, 600s});
  const auto a = pending.begin([] { return "a has"; }, kStart);
  pending.add(a, 0, {1, {}, [] {}}, kStart);
  EXPECT_EQ(pending.overdue(kStart + 600s), "a has waited 600 s for worker 1");
}

}  // namespace
}  // namespace gradwire::kvstore
