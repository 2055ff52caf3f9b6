// What a C++ test program is told on its command line, beside GoogleTest's own options. A program that is
// copied to another machine finds its files by them; nothing of a build's paths is compiled in.
#pragma once

#include <string>

namespace gradwire {

struct TestOptions {
  std::string source_dir = ".";  ///< --source-dir: the source tree, or a copy of the files that tests read
  std::string nccl_library;      ///< --nccl-library: path of libnccl.so.2; empty: NCCL is not installed
  std::string mpi_library;       ///< --mpi-library: path of libgradwire_mpi.so
  std::string mpi_rank;          ///< --mpi-rank: the program that a rank of MPI runs (mpi_rank.cpp)
  std::string mpiexec;           ///< --mpiexec: starts it
};

/// Those of this process, once read_test_options() has been called.
const TestOptions& test_options();

/// Reads the options that GoogleTest left in argv, each as --name=value. Throws std::invalid_argument for any
/// other word.
void read_test_options(int argc, char** argv);

}  // namespace gradwire
