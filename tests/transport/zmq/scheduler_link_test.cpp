// A node whose connection to the scheduler is down for a moment misses nothing that the scheduler says
// meanwhile.
#include "transport/zmq/scheduler_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/transport/ear.h"
#include "tests/transport/zmq/relay.h"
#include "tests/transport/zmq/zmq_jobs.h"
#include "transport/zmq/scheduler.h"
#include "transport/zmq/zmq_messenger.h"

namespace gradwire::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;
using Joined = std::unique_ptr<Messenger>;

/// Worker 0, worker 1, whose control connection is the relay's, and the scheduler of both.
struct LinkedJob {
  explicit LinkedJob(ZmqOptions job) : scheduler(job) {
    const auto options_of = [&](std::uint32_t rank) {
      ZmqOptions options = node_of(job, scheduler, Role::kWorker, rank);
      if (job.on_failure == OnFailure::kContinue) options.member = "w" + std::to_string(rank);
      return options;
    };
    ZmqOptions behind_relay = options_of(1);
    behind_relay.scheduler = relay.endpoint();
    auto first = join_later(options_of(0)), second = join_later(behind_relay);
    w0 = first.get();
    w1 = second.get();
  }

  /// Does something while worker 1 hears nothing.
  void while_down(const std::function<void()>& act) {
    relay.set_up(false);
    act();
    std::this_thread::sleep_for(100ms);  // for the scheduler to say what there is to be said
    relay.set_up(true);
  }

  Scheduler scheduler;
  Relay relay{scheduler.endpoint()};
  Joined w0, w1;
};

TEST(SchedulerLink, HearsOfAGoodbyeThatWasSaidWhileItsConnectionWasDown) {
  LinkedJob job(job_of(2, 0));
  Ear ear;
  job.w1->attach(ear);
  job.while_down([&] { job.w0.reset(); });
  EXPECT_TRUE(ear.hears_goodbye_of({Role::kWorker, 0}));
  std::this_thread::sleep_for(1200ms);  // two beats: it is told once
  EXPECT_THAT(ear.goodbyes(1), ElementsAre(Node{Role::kWorker, 0}));
  EXPECT_TRUE(ear.failures(0).empty());
  job.w1->detach();
}

TEST(SchedulerLink, HearsOfAChangeOfMembersThatWasToldWhileItsConnectionWasDown) {
  ZmqOptions options = job_of(2, 0);
  options.on_failure = OnFailure::kContinue;
  LinkedJob job(options);
  Ear ear;
  job.w1->attach(ear);
  job.while_down([&] { job.w0->regroup("ended with OSError: no such file", Parting::kLeaves); });
  EXPECT_THAT(ear.failures(1), ElementsAre(HasSubstr("ended with OSError: no such file; the job goes on")));
  job.w1->detach();
}

}  // namespace
}  // namespace gradwire::transport
