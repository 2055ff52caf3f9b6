// The queue of sums where MPI does not return. mpi_ranks/sums_test.cpp has the sums themselves.
#include "transport/mpi/mpi_sums.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/transport/collective_outcomes.h"
#include "tests/transport/mpi/one_rank_port.h"

namespace gradwire::transport {
namespace {

TEST(MpiSums, StartNoPieceOfASumThatHasFailed) {
  std::promise<void> entered, returns;
  int pieces = 0;
  OneRankPort::Hooks hooks;
  hooks.on_all_reduce = [&] {
    if (++pieces > 1) return;
    entered.set_value();
    returns.get_future().wait();
  };
  OneRankPort port(hooks);
  MpiSums sums(port, sizeof(float));
  std::promise<Outcome> outcome;
  sums.all_reduce(buffer_of<float>({1, 2}), ElementType::kFloat32,
                  [&](Buffer values, std::exception_ptr error) {
                    outcome.set_value({std::move(values), std::move(error)});
                  });
  std::thread caller_of_mpi([&] { sums.start_queued(); });
  entered.get_future().wait();
  sums.fail(std::make_exception_ptr(TransportError("MPI has not returned")));
  const auto [values, error] = outcome.get_future().get();
  EXPECT_EQ(values.size_bytes(), 2 * sizeof(float));
  EXPECT_TRUE(error);
  returns.set_value();
  caller_of_mpi.join();
  EXPECT_EQ(pieces, 1) << "MPI would work on memory that is its owner's again";
}

}  // namespace
}  // namespace gradwire::transport
