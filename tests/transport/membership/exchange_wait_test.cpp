#include "transport/membership/exchange_wait.h"

#include <gmock/gmock.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace gradwire::transport {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr Node kSelf{Role::kWorker, 0};

/// An exchange whose other workers answer to who asks, or do not.
struct Waiting {
  std::mutex mutex;
  std::condition_variable changed;
  AwaitedExchange awaited;
  std::function<void()> answer = [this] { awaited.missing = std::vector<std::uint32_t>{1, 3}; };
  std::vector<std::string> told;
  SlowExchange slow{10ms, [this](Node self, const std::string& text) {
                      EXPECT_EQ(self, kSelf);
                      EXPECT_TRUE(mutex.try_lock()) << "others may not be held up by who writes";
                      mutex.unlock();
                      told.push_back(text);
                    }};

  std::string within(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex);
    ExchangeWait wait({kSelf, 7, "barrier", "the scheduler"}, awaited,
                      {lock, changed, [this] { return awaited.blobs.has_value(); }, [this] { answer(); }});
    return wait.within(timeout, slow);
  }
};

TEST(ExchangeWait, WhoIsMissingIsToldOnceAndKnownInTheEnd) {
  Waiting waiting;
  EXPECT_EQ(waiting.within(100ms),
            "exchange 7 ('barrier'): worker 1 and worker 3 did not come within 100 ms");
  EXPECT_THAT(waiting.told, ElementsAre("exchange 7 ('barrier') has waited 0 s for worker 1 and worker 3"));
}

TEST(ExchangeWait, WhoComesBeforeTheWarningIsNotNamed) {
  Waiting waiting;
  waiting.slow.warning = 60s;
  std::jthread other([&] {
    std::this_thread::sleep_for(30ms);
    {
      const std::lock_guard lock(waiting.mutex);
      waiting.awaited.blobs.emplace();
    }
    waiting.changed.notify_all();
  });
  EXPECT_EQ(waiting.within(60s), "");
  EXPECT_THAT(waiting.told, IsEmpty());
}

TEST(ExchangeWait, WithoutAnAnswerWhoWouldKnowIsNamed) {
  Waiting waiting;
  waiting.answer = [] {};
  EXPECT_EQ(waiting.within(30ms), "exchange 7 ('barrier'): the scheduler did not come within 30 ms");
  EXPECT_THAT(waiting.told, IsEmpty());
}

TEST(ExchangeWait, WhatTheTellerThrowsEndsItWithTheLockHeld) {
  Waiting waiting;
  waiting.slow.notify = [](Node, const std::string&) { throw std::runtime_error("Ctrl-C"); };
  std::unique_lock lock(waiting.mutex);
  ExchangeWait wait({kSelf, 7, "barrier", "the scheduler"}, waiting.awaited,
                    {lock, waiting.changed, [] { return false; }, waiting.answer});
  EXPECT_THROW(wait.within(60s, waiting.slow), std::runtime_error);
  EXPECT_TRUE(lock.owns_lock());
}

}  // namespace
}  // namespace gradwire::transport
