// What becomes of the processes of a job over MPI: mpi_rank under mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

#include "tests/test_options.h"
#include "tests/transport/frames.h"
#include "transport/mpi/mpi.h"

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Ending {
  int status = 0;
  std::string text;
};

Ending run_command(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  Ending ending;
  std::array<char, 4096> part{};
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), pipe))
    ending.text.append(part.data(), count);
  const int status = pclose(pipe);
  ending.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ending;
}

Ending run(int ranks, const std::string& scenario, const std::string& more = "") {
  // What Open MPI allocates in its plug-ins it leaves behind when they are closed.
  return run_command("ASAN_OPTIONS=detect_leaks=0 " + test_options().mpiexec +
                     " --allow-run-as-root --oversubscribe --bind-to none -np " + std::to_string(ranks) +
                     " " + more + " " + test_options().mpi_rank + " " + test_options().mpi_library + " " +
                     scenario + " 2>&1");
}

/// Open MPI 5 aborts some ranks itself where another dies, whatever --enable-recovery says, and the
/// coordinator may be one of them.
bool ends_ranks_itself() {
  return run_command(test_options().mpiexec + " --version 2>&1").text.find("(Open MPI) 5.") !=
         std::string::npos;
}

TEST(MpiProcesses, ACleanJobFinalisesAndSaysNothing) {
  for (const int ranks : {1, 2, 4}) {
    const Ending ending = run(ranks, "clean");
    EXPECT_EQ(ending.status, 0) << ranks;
    EXPECT_THAT(ending.text, IsEmpty());
  }
  EXPECT_EQ(run(2, "clean_native").status, 0);
}

TEST(MpiProcesses, TwoJobsAtOnceFinaliseOnce) {
  const Ending ending = run(2, "two_at_once");
  EXPECT_EQ(ending.status, 0);
  EXPECT_THAT(ending.text, IsEmpty());
}

TEST(MpiProcesses, ASecondJobAfterTheEndOfMpiIsRefusedInWords) {
  const Ending ending = run(2, "one_after_another");
  EXPECT_NE(ending.status, 0);
  EXPECT_THAT(ending.text, HasSubstr("MPI was finalised in this process and cannot be started again"));
}

// mpirun ends the others; whichever comes first says who it was.
TEST(MpiProcesses, AKilledRankEndsAllAndIsNamed) {
  const Ending ending = run(3, "killed");
  EXPECT_NE(ending.status, 0);
  EXPECT_THAT(ending.text, AnyOf(HasSubstr("process rank 1 "), HasSubstr("worker 1 (")));
  EXPECT_THAT(ending.text, HasSubstr("signal 9"));
}

TEST(MpiProcesses, AKilledRankIsNamedByTheOthersWhereMpirunLetsThemLive) {
  if (ends_ranks_itself()) GTEST_SKIP() << "Open MPI 5 ends other ranks itself, too";
  const Ending ending = run(3, "killed", "--enable-recovery");
  for (const std::string rank : {"rank 0: ", "rank 2: "}) {
    EXPECT_THAT(ending.text, HasSubstr(rank + "worker 1 ("));
  }
}

// Open MPI's own death over TCP can be a deadlock inside MPI: then nobody can be named, but nobody waits
// either.
TEST(MpiProcesses, AKilledRankOverTcpKeepsNobodyWaiting) {
  if (ends_ranks_itself()) GTEST_SKIP() << "Open MPI 5 ends other ranks itself, too";
  const Ending ending = run(3, "killed", "--enable-recovery --mca btl tcp,self");
  for (const std::string rank : {"rank 0: worker ", "rank 2: worker "})
    EXPECT_THAT(ending.text, HasSubstr(rank));
}

// Nobody but us notices a process that stands still.
TEST(MpiProcesses, AStoppedRankEndsAllAndIsNamed) {
  const Ending ending = run(3, "stopped");
  EXPECT_NE(ending.status, 0);
  EXPECT_THAT(ending.text, AllOf(HasSubstr("worker 1 ("), HasSubstr(") sent no heartbeat for 2.")));
}

TEST(MpiProcesses, AFailureIsSaidOnStderrAndMpiIsNotFinalised) {
  const Ending ending = run(3, "failed");
  EXPECT_EQ(ending.status, 3);
  EXPECT_THAT(ending.text, HasSubstr("worker 1: the disk is full"));
}

TEST(MpiProcesses, ARankThatDoesNotComeIsAwaitedNoLongerThanAsked) {
  const Ending ending = run(2, "never_initialised");
  EXPECT_NE(ending.status, 0);
  EXPECT_THAT(ending.text, HasSubstr("rank 0: mpi: MPI_Init_thread did not return within 1 s"));
}

TEST(MpiProcesses, ARankThatUsesMpiForSomethingElseIsAwaitedNoLongerThanAsked) {
  const Ending ending = run(2, "never_connected");
  EXPECT_NE(ending.status, 0);
  EXPECT_THAT(ending.text,
              HasSubstr("rank 0: mpi: not all of the 2 ranks of MPI_COMM_WORLD came within 1 s"));
}

TEST(MpiProcesses, AnMpiOfTooLowAThreadLevelIsRefusedInWords) {
  const Ending ending = run(1, "beside_a_serialized_mpi");
  EXPECT_EQ(ending.status, 3);
  EXPECT_THAT(ending.text, AllOf(HasSubstr("TransportError: mpi: this process initialised MPI with "
                                           "MPI_THREAD_SERIALIZED"),
                                 HasSubstr("initialise it with MPI_THREAD_MULTIPLE")));
}

TEST(MpiProcesses, AnotherUserOfMpiKeepsIt) {
  const Ending ending = run(3, "beside_a_user_of_mpi");
  EXPECT_EQ(ending.status, 0);
  EXPECT_THAT(ending.text, IsEmpty());
}

TEST(MpiProcesses, TheLibraryIsDescribed) {
  const Ending ending = run(1, "described");
  EXPECT_EQ(ending.status, 0);
  EXPECT_THAT(ending.text, HasSubstr(" gives MPI_THREAD_"));
}

}  // namespace
}  // namespace gradwire::transport
