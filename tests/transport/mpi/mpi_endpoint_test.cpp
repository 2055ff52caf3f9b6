// A rank of a job over MPI where MPI does what it should not.
#include "transport/mpi/mpi_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <future>

#include "tests/transport/ear.h"
#include "tests/transport/mpi/one_rank_port.h"

namespace gradwire::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

TEST(MpiEndpoint, ABarrierThatDoesNotReturnIsReported) {
  std::promise<void> returns;
  const auto destroyed = std::make_shared<std::promise<void>>();  // owners: this and the port
  OneRankPort::Hooks hooks;
  hooks.on_barrier = [returned = returns.get_future().share()] { returned.wait(); };
  hooks.on_destroyed = [destroyed] { destroyed->set_value(); };
  MpiOptions options;
  options.liveness_timeout = 50ms;
  auto endpoint = MpiEndpoint::connect(std::make_unique<OneRankPort>(hooks), options, MpiJob::kNative, 1);
  MpiEndpoint::Place& worker = endpoint->place(Role::kWorker);
  Ear ear;
  endpoint->attach(worker, ear);
  auto leaving = std::async(std::launch::async, [&] { endpoint->leave(worker, kPatience); });
  EXPECT_THAT(ear.failures(1), ElementsAre(HasSubstr("worker 0: MPI has not returned for 0.1 s")));
  returns.set_value();
  leaving.get();
  worker.inbox.detach();
  endpoint->close();
  endpoint.reset();
  // The I/O thread has a share of its own, and ends once MPI has returned.
  EXPECT_EQ(destroyed->get_future().wait_for(kPatience), std::future_status::ready);
}

// As Open MPI over TCP does where another rank has died. By default the signal ends the process.
TEST(MpiEndpoint, AWriteToAConnectionThatIsGoneEndsNoProcess) {
  OneRankPort::Hooks hooks;
  hooks.on_barrier = [] { static_cast<void>(std::raise(SIGPIPE)); };
  auto endpoint = MpiEndpoint::connect(std::make_unique<OneRankPort>(hooks), {}, MpiJob::kNative, 1);
  MpiEndpoint::Place& worker = endpoint->place(Role::kWorker);
  Ear ear;
  endpoint->attach(worker, ear);
  endpoint->leave(worker, kPatience);
  EXPECT_THAT(ear.failures(0), testing::IsEmpty());
  worker.inbox.detach();
  endpoint->close();
}

}  // namespace
}  // namespace gradwire::transport
