#include "transport/mpi/mpi_rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/transport/ear.h"
#include "tests/transport/mpi/one_rank_port.h"

namespace gradwire::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<MpiEntry> entries_of_three() {
  std::vector<MpiEntry> entries(3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    entries[rank].pid = 100 + rank;
    entries[rank].largest_message_bytes = 1 << 20;
    std::strcpy(entries[rank].host.data(), "node7");
  }
  return entries;
}

std::string objection_to(const std::vector<MpiEntry>& entries) {
  try {
    check_agreement(entries);
  } catch (const TransportError& error) {
    return error.what();
  }
  return "none";
}

TEST(MpiRendezvous, RanksThatAgreeAreAJob) { EXPECT_EQ(objection_to(entries_of_three()), "none"); }

TEST(MpiRendezvous, WhoDiffersIsNamedWithBothValues) {
  auto entries = entries_of_three();
  entries[2].job = MpiJob::kNative;
  EXPECT_THAT(objection_to(entries), AllOf(HasSubstr("worker 0 (node7, pid 100) called connect_mpi and"),
                                           HasSubstr("worker 2 (node7, pid 102) connect_mpi_native")));
  entries = entries_of_three();
  entries[1].version = 9;
  EXPECT_THAT(objection_to(entries),
              AllOf(HasSubstr("speaks version 1"), HasSubstr("worker 1 (node7, pid 101) 9")));
  entries = entries_of_three();
  entries[1].largest_message_bytes = 5;
  EXPECT_THAT(objection_to(entries), HasSubstr("largest_message_bytes=1048576"));
}

// AddressSanitizer finds a gather that writes into memory that was freed.
TEST(MpiRendezvous, AGatherMayEndAfterTheTimeout) {
  OneRankPort::Hooks hooks;
  hooks.gathers_end = false;
  OneRankPort port(hooks);
  EXPECT_THAT(error_of([&] { mpi_rendezvous(port, MpiEntry{}, std::chrono::milliseconds(10), nullptr); }),
              HasSubstr("not all of the 1 ranks of MPI_COMM_WORLD came within 0.01 s"));
  port.abandon();
  port.end_gather();
}

}  // namespace
}  // namespace gradwire::transport
