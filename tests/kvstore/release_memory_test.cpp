#include "kvstore/release_memory.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include "kvstore/leftover.h"
#include "kvstore/residual.h"

namespace gradwire::kvstore {
namespace {

/// Bytes of large blocks in use; always 0 with a sanitizer's allocator.
std::size_t large_blocks() { return mallinfo2().hblkhd; }

constexpr std::size_t kElements = std::size_t{16} << 20;

TEST(ReleaseMemory, FreesWhatAVectorHolds) {
  std::vector<float> values(1000);
  release_memory(values);
  EXPECT_TRUE(values.empty());
  EXPECT_EQ(values.capacity(), 0U);
}

TEST(ReleaseMemory, ResidualsThatAreSentTakeNone) {
  std::vector<float> left(kElements), values(kElements);
  take_leftover<float>(values, left);
  EXPECT_EQ(left.capacity(), 0U);
}

TEST(ReleaseMemory, ResidualsThatAreClearedTakeNone) {
  const std::size_t before = large_blocks();
  Residual residual;
  residual.assign_zeros(kElements);
  if (large_blocks() == before) GTEST_SKIP() << "this allocator does not count";
  residual.clear();
  EXPECT_EQ(large_blocks(), before);
}

}  // namespace
}  // namespace gradwire::kvstore
