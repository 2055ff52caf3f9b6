#include "kvstore/placement/sum_trailer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "compress/dense/dense_scalar.h"

namespace gradwire::kvstore {
namespace {

using transport::ElementType;
using transport::FrameHeader;

/// What a library makes of the tails of so many ranks, one after the other in bfloat16.
std::vector<std::byte> sum_in_bf16(const FrameHeader& header, std::uint32_t ranks) {
  std::vector<std::byte> tail(SumTrailer::size_bytes(2)), sum = tail;
  SumTrailer::write(header, ElementType::kBfloat16, tail);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < tail.size(); i += 2) {
      std::uint16_t one = 0, so_far = 0;
      std::memcpy(&one, tail.data() + i, 2);
      std::memcpy(&so_far, sum.data() + i, 2);
      const float added = compress::dense::float_from_bf16(one) + compress::dense::float_from_bf16(so_far);
      so_far = compress::dense::bf16_from_float(added);
      std::memcpy(sum.data() + i, &so_far, 2);
    }
  }
  return sum;
}

bool says_same(std::uint32_t ranks) {
  FrameHeader header;
  header.key = 5;
  header.flags = transport::kFlagNonfinite;
  const SumTrailer read = SumTrailer::read(sum_in_bf16(header, ranks), ElementType::kBfloat16, header, ranks);
  EXPECT_TRUE(read.nonfinite);
  return read.same;
}

TEST(SumTrailer, HoldsAsManyRanksAsItsTypeCounts) {
  const std::uint32_t most = SumTrailer::most_ranks(ElementType::kBfloat16);
  EXPECT_TRUE(says_same(1) && says_same(2) && says_same(most - 1) && says_same(most));
  EXPECT_FALSE(says_same(most + 2)) << "rounded; such a job gathers instead";
  EXPECT_EQ(SumTrailer::most_ranks(ElementType::kFloat16), 2048U);
  EXPECT_GT(SumTrailer::most_ranks(ElementType::kFloat32), 1'000'000U);
}

}  // namespace
}  // namespace gradwire::kvstore
