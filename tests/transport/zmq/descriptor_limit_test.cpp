#include "transport/zmq/descriptor_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>

#include "tests/transport/zmq/zmq_jobs.h"

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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

TEST(DescriptorLimit, AWorkerDoesToo) {
  const FewDescriptors few;
  ZmqOptions options = job_of(1, 0);
  const Scheduler scheduler(options);
  const FewDescriptors again;
  connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
  EXPECT_EQ(limit_now().rlim_cur, few.most());
}

/// In a process of its own, whose limit cannot be raised again: what `act` fails with, or how it ends the
/// process.
std::string fate_with(rlim_t free, const std::function<void()>& act) {
  int report[2];
  if (pipe(report) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    std::string fate = "no error";
    int lowest_free = dup(0);
    rlimit limit = limit_now();
    limit.rlim_cur = limit.rlim_max = static_cast<rlim_t>(lowest_free) + free;
    setrlimit(RLIMIT_NOFILE, &limit);
    close(lowest_free);
    try {
      act();
    } catch (const TransportError& error) {
      fate = std::string("an error: ") + error.what();
    } catch (const TimeoutError& error) {
      fate = std::string("an error: ") + error.what();
    } catch (const std::exception& error) {
      fate = std::string("another error: ") + error.what();
    }
    static_cast<void>(write(report[1], fate.data(), fate.size()));
    _exit(0);
  }
  close(report[1]);
  std::string fate;
  char bytes[4096];
  for (ssize_t count = 0; (count = read(report[0], bytes, sizeof(bytes))) > 0;)
    fate.append(bytes, static_cast<std::size_t>(count));
  close(report[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status)) : fate;
}

#ifdef __SANITIZE_ADDRESS__
constexpr rlim_t kFewest = 2;  // UBSan, which is there too, looks at objects by a pipe
#else
constexpr rlim_t kFewest = 0;
#endif

// libzmq ended the process (SIGABRT) where its threads got no descriptors.
TEST(DescriptorLimit, TooFewAreAnErrorAndNoEndOfTheProcess) {
  int errors = 0;
  for (rlim_t free = kFewest; free <= 48; ++free) {
    const std::string fate = fate_with(free, [] {
      ZmqOptions options = job_of(1, 0);
      options.rendezvous_timeout = std::chrono::milliseconds(200);
      const Scheduler scheduler(options);
      connect_zmq(node_of(options, scheduler, Role::kWorker, 0));
    });
    if (fate == "no error") break;
    ++errors;
    EXPECT_THAT(
        fate, AllOf(StartsWith("an error: "), HasSubstr("file descriptors in use"), HasSubstr("ulimit -Hn")))
        << free << " are free";
  }
  EXPECT_GT(errors, 16);
}

TEST(DescriptorLimit, AJobThatNeedsMoreThanThereAreIsRefusedAtOnce) {
  const std::string fate = fate_with(100, [] { const Scheduler scheduler(job_of(200, 0)); });
  EXPECT_THAT(fate, HasSubstr("scheduler: 200 workers and 200 servers: listening to them needs 400 more"));
}

TEST(DescriptorLimit, IsNeverLowered) {
  const rlim_t before = limit_now().rlim_cur;
  allow_many_connections();
  EXPECT_GE(limit_now().rlim_cur, before);
}

}  // namespace
}  // namespace gradwire::transport
