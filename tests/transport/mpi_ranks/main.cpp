// Runs the tests of this folder as one rank of many: start it with mpirun. The process initialises MPI, as
// one with mpi4py does, so that every test can have a job of its own.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>

#include "tests/test_options.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  gradwire::read_test_options(argc, argv);
  int level = 0, rank = 0, worst = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank > 0) GTEST_FLAG_SET(brief, true);  // of the others, failures only
  const int result = RUN_ALL_TESTS();
  MPI_Allreduce(&result, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0 && worst != result) std::puts("a test failed on another rank");
  MPI_Finalize();
  return worst;
}
