// How codes are summed by a library: the formula of the bytes, and what follows from it.
#include "kvstore/wire/code_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gradwire::kvstore {
namespace {

using compress::IntegerWidth;

TEST(CodeSums, BitsFollowTheFormula) {
  EXPECT_EQ(gathered_bits(1, 2), 0);
  EXPECT_EQ(summed_bits(1, IntegerWidth::kInt8), 0);
  EXPECT_EQ(gathered_bits(2, 2), 2);
  EXPECT_EQ(summed_bits(2, IntegerWidth::kInt8), 8);
  EXPECT_EQ(gathered_bits(8, 2), 14);
  EXPECT_EQ(summed_bits(8, IntegerWidth::kInt8), 14);
  EXPECT_EQ(gathered_bits(16, 2), 30);
  EXPECT_EQ(summed_bits(16, IntegerWidth::kInt8), 15);
  EXPECT_EQ(gathered_bits(128, 2), 254);
  EXPECT_EQ(summed_bits(128, IntegerWidth::kInt16), 31.75);
}

TEST(CodeSums, TwoBitsAreGatheredUpToEightRanksAndAddedAbove) {
  for (const std::uint32_t ranks : {1U, 2U, 3U, 8U})
    EXPECT_EQ(integers_for(CodeSums::kFewestBits, ranks, 2), std::nullopt) << ranks;
  for (const std::uint32_t ranks : {9U, 64U, 127U})
    EXPECT_EQ(integers_for(CodeSums::kFewestBits, ranks, 2), IntegerWidth::kInt8) << ranks;
  for (const std::uint32_t ranks : {128U, 32'767U})
    EXPECT_EQ(integers_for(CodeSums::kFewestBits, ranks, 2), IntegerWidth::kInt16) << ranks;
}

TEST(CodeSums, EitherMayBeForced) {
  EXPECT_EQ(integers_for(CodeSums::kIntegers, 1, 2), IntegerWidth::kInt8);
  EXPECT_EQ(integers_for(CodeSums::kIntegers, 3, 2), IntegerWidth::kInt8);
  EXPECT_EQ(integers_for(CodeSums::kGather, 64, 2), std::nullopt);
}

TEST(CodeSums, MoreRanksThanSixteenBitsHoldAreGathered) {
  for (const CodeSums code_sums : {CodeSums::kFewestBits, CodeSums::kIntegers})
    EXPECT_EQ(integers_for(code_sums, 32'768, 2), std::nullopt);
}

TEST(CodeSums, WordsAreReadBack) {
  for (const CodeSums code_sums : {CodeSums::kFewestBits, CodeSums::kGather, CodeSums::kIntegers})
    EXPECT_EQ(parse_code_sums(to_string(code_sums)), code_sums);
  try {
    parse_code_sums("ints");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "code_sums='ints', expected auto, gather or integers");
  }
}

}  // namespace
}  // namespace gradwire::kvstore
