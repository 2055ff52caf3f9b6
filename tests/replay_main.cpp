// Runs a fuzzer's function over the files of folders, without libFuzzer: what is kept of its findings, in
// every build.
//
//     gradwire_decoder_replay --codec=2bit FOLDER
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  LLVMFuzzerInitialize(&argc, &argv);
  std::size_t count = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]).starts_with("--")) continue;  // the fuzzer's own
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> text((std::istreambuf_iterator<char>(file)), {});
      const std::vector<std::uint8_t> input(text.begin(), text.end());
      std::printf("%s\n", entry.path().filename().c_str());  // the last one printed is the one that fails
      std::fflush(stdout);
      LLVMFuzzerTestOneInput(input.data(), input.size());
      ++count;
    }
  }
  std::printf("replayed %zu inputs\n", count);
  return 0;
}
