#include "tests/test_options.h"

#include <map>
#include <stdexcept>
#include <string_view>

namespace gradwire {
namespace {

TestOptions& options() {
  static TestOptions read;
  return read;
}

}  // namespace

const TestOptions& test_options() { return options(); }

void read_test_options(int argc, char** argv) {
  const std::map<std::string_view, std::string*> known = {{"--source-dir", &options().source_dir},
                                                          {"--nccl-library", &options().nccl_library},
                                                          {"--mpi-library", &options().mpi_library},
                                                          {"--mpi-rank", &options().mpi_rank},
                                                          {"--mpiexec", &options().mpiexec}};
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto found = known.find(word.substr(0, word.find('=')));
    if (found == known.end() || word.find('=') == word.npos) {
      std::string names;
      for (const auto& [name, value] : known) names += (names.empty() ? "" : ", ") + std::string(name);
      throw std::invalid_argument("unknown option '" + std::string(word) + "', expected one of " + names +
                                  ", each with =value");
    }
    *found->second = word.substr(word.find('=') + 1);
  }
}

}  // namespace gradwire
