// Workers that are at different steps of their program get an error that names them, on every rank, wherever
// the sums are made.
#include "kvstore/aggregate/program_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "kvstore/rows/sparse_rows.h"
#include "tests/kvstore/job.h"
#include "tests/kvstore/placement/hosts.h"
#include "tests/kvstore/sums.h"

namespace gradwire::kvstore {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using namespace std::chrono_literals;
using Runner = void (*)(const JobSize&, const std::function<void(Engine&)>&);

TEST(ProgramSteps, TheFirstTwoThatDifferAreNamed) {
  ProgramSteps steps;
  steps.add(2, 7);
  steps.add(0, 0);  // says nothing
  steps.add(1, 7);
  EXPECT_NO_THROW(steps.require_alike());
  steps.add(3, 8);
  steps.add(4, 9);
  EXPECT_THAT([&] { steps.require_alike(); },
              ThrowsMessage<std::runtime_error>(
                  HasSubstr("worker 2 is at step 7 of its program and worker 3 at step 8")));
}

void run_one_host_and_another(const JobSize& size, const std::function<void(Engine&)>& body) {
  run_hosts(size, {"a", "a", "b"}, body);
}
void run_one_host(const JobSize& size, const std::function<void(Engine&)>& body) {
  run_hosts(size, {"a", "a", "a"}, body);
}

/// Runs a job that fails: its workers see that, and its servers end with it.
void run_to_failure(Runner run, const JobSize& size, const std::function<void(Engine&)>& body) {
  try {
    run(size, body);
  } catch (const transport::TransportError&) {  // NOLINT(bugprone-empty-catch)
  }
}

class ProgramStepsOf : public testing::TestWithParam<Runner> {};
constexpr const char* kNames[] = {"Servers", "Peers", "Native", "Hosts", "OneHost"};
INSTANTIATE_TEST_SUITE_P(All, ProgramStepsOf,
                         testing::Values(run_job, run_peers, run_native, run_one_host_and_another,
                                         run_one_host),
                         [](const auto& info) { return kNames[info.index]; });

TEST_P(ProgramStepsOf, WorkersThatDifferAllGetAnError) {
  for (const std::string codec : {"none", "2bit:threshold=0.5"}) {
    run_to_failure(GetParam(), {3, 1}, [&](Engine& engine) {
      engine.compression().set(spec(codec), codec == "none" ? "fp32" : "exact");
      const auto keys = engine.declare(std::vector<KeySpec>{{"w", {1000}}});
      auto values = random_floats(1000, engine.rank());
      for (std::uint32_t step : {1U, 2U}) engine.push_pull(keys[0], values, values, 0, 1, {}, step).wait();
      engine.push_pull(keys[0], values, values, 0).wait();  // says nothing
      const Ticket sum = engine.push_pull(keys[0], values, values, 0, 1, {}, engine.rank() == 1 ? 4 : 3);
      EXPECT_THROW(sum.wait_for(20s), transport::TransportError);  // and no worker waits for another
    });
  }
}

TEST(ProgramSteps, TheErrorNamesWorkersAndSteps) {
  run_to_failure(run_job, {2, 2}, [&](Engine& engine) {
    const auto keys = engine.declare(std::vector<KeySpec>{{"w", {1000}}});
    std::vector<float> values(1000);
    const Ticket sum = engine.push_pull(keys[0], values, values, 0, 1, {}, 3 + engine.rank());
    EXPECT_THAT([&] { sum.wait_for(20s); },
                ThrowsMessage<transport::TransportError>(AllOf(
                    HasSubstr("'w'"), HasSubstr("worker 0"), HasSubstr("at step 3"), HasSubstr("worker 1"),
                    HasSubstr("at step 4"), HasSubstr("every worker must take the same steps"))));
  });
}

TEST(ProgramSteps, SlotsAndRowsAreCompared) {
  for (const bool rows : {false, true}) {
    run_to_failure(run_job, {2, 2}, [&](Engine& engine) {
      const auto keys = engine.declare(std::vector<KeySpec>{{"a", {10}}, {"b", {20}}});
      const auto table = engine.sparse().declare(std::vector<KeySpec>{{"rows", {100, 2}}}).front();
      engine.sparse().init(table, {}, {}, 0);
      std::vector<float> a(10), b(20);
      engine.slots().bind(keys, std::vector<ArrayView>{a, b});
      const std::int64_t id = 7;
      const float row[] = {1, 2};
      const auto step = [&](std::uint32_t number) {
        engine.slots().set_program_step(number);
        engine.slots().mark_ready(1);
        engine.slots().mark_ready(0);
        if (!engine.slots().drain_for(20s)) throw std::logic_error("no sums");
      };
      const auto rows_step = [&](std::uint32_t number) {
        const auto pulled = engine.sparse().push_pull(table, {&id, 1}, row, 0, number);
        if (!pulled.done.wait_for(20s)) throw std::logic_error("no rows");
      };
      step(1);
      rows_step(1);
      const std::uint32_t own = engine.rank() == 0 ? 2 : 3;
      EXPECT_ANY_THROW(rows ? rows_step(own) : step(own));
    });
  }
}

}  // namespace
}  // namespace gradwire::kvstore
