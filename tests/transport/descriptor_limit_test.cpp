#include "transport/descriptor_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

#include "tests/transport/zmq_jobs.h"
#include "transport/data_links.h"

namespace gradwire::transport {
namespace {

rlimit limit_now() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

/// A process that may hold few files, until this ends.
class FewDescriptors {
 public:
  FewDescriptors() : before_(limit_now()) {
    rlimit few = before_;
    few.rlim_cur = std::min<rlim_t>(256, before_.rlim_max);
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  rlim_t most() const { return std::min<rlim_t>(before_.rlim_max, 1 << 20); }

 private:
  const rlimit before_;
};

TEST(DescriptorLimit, ASchedulerTakesAsManyAsTheSystemGives) {
  const FewDescriptors few;
  const Scheduler scheduler(job_of(1, 1));
  EXPECT_EQ(limit_now().rlim_cur, few.most());
}

TEST(DescriptorLimit, AServerDoesAlsoInAWorkersProcess) {
  const FewDescriptors few;
  const ZmqContext context;
  Inbox inbox;
  Traffic traffic;
  Refusals refusals(nullptr);
  const ServerLinks links({inbox, traffic, refusals}, context, "tcp://127.0.0.1:*", 1 << 20, std::nullopt);
  EXPECT_EQ(limit_now().rlim_cur, few.most());
}

TEST(DescriptorLimit, IsNeverLowered) {
  const rlim_t before = limit_now().rlim_cur;
  allow_many_connections();
  EXPECT_GE(limit_now().rlim_cur, before);
}

}  // namespace
}  // namespace gradwire::transport
