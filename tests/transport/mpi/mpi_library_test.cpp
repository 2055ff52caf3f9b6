// What is said where libgradwire_mpi.so is not there, or is not it.
#include "transport/mpi/mpi_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/transport/frames.h"
#include "transport/mpi/mpi.h"

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MpiLibrary, OneThatIsNotThereIsAReasonNotACrash) {
  MpiOptions options;
  options.library = "/nowhere/libgradwire_mpi.so";
  const auto says_so =
      AllOf(HasSubstr("TransportError: mpi: '/nowhere/libgradwire_mpi.so' cannot be loaded: "),
            HasSubstr("No such file"), HasSubstr("install Open MPI"));
  EXPECT_THAT(error_of([&] { connect_mpi(options); }), says_so);
  EXPECT_THAT(error_of([&] { connect_mpi_native(options); }), says_so);
  EXPECT_THAT(error_of([&] { describe_mpi(options.library); }), says_so);
}

TEST(MpiLibrary, AnotherLibraryIsRefused) {
  EXPECT_THAT(error_of([] { load_mpi("libm.so.6"); }),
              HasSubstr("'libm.so.6' is of another version of gradwire: "));
}

}  // namespace
}  // namespace gradwire::transport
