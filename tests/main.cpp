// Runs the tests of one folder.
#include <gmock/gmock.h>

#include <cstdio>
#include <exception>

#include "tests/test_options.h"

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  try {
    gradwire::read_test_options(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 2;
  }
  return RUN_ALL_TESTS();
}
