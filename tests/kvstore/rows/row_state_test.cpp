#include "kvstore/rows/row_state.h"

#include <gtest/gtest.h>

#include <random>

#include "compress/codec.h"

namespace gradwire::kvstore {
namespace {

constexpr RowShape kShape{9, 2};
const RowState kState{5, 4, true, {{0, 8}, {1, 2, -0.0F, 4}}, {{3}, {5, 6}}, {{8}, {1, 2, 3, 4}}};
const RowState kOfSums{7, 0, false, {}, {{0, 1}, {1, 2, 3, 4}}, {}};

std::vector<std::byte> bytes_of(const RowState& state) {
  const auto buffer = encode_state(state, kShape);
  return {buffer.bytes().begin(), buffer.bytes().end()};
}

TEST(RowState, ComesBackAsItWas) {
  for (const RowState& state : {kState, kOfSums, RowState{}})
    EXPECT_EQ(decode_row_state(bytes_of(state), kShape), state);
  EXPECT_EQ(shape_of_state(bytes_of(kState)), kShape);
}

TEST(RowState, OtherLengthsAndShapesAreRefused) {
  const auto bytes = bytes_of(kState);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_THROW(decode_row_state(std::span(bytes).first(length), kShape), compress::DecodeError) << length;
  EXPECT_THROW(decode_row_state(bytes, {10, 2}), compress::DecodeError);
  EXPECT_THROW(decode_row_state(bytes, {9, 4}), compress::DecodeError);
}

TEST(RowState, IdsThatDoNotAscendOrAreNoRowsAreRefused) {
  for (const std::vector<std::uint64_t>& ids : {std::vector<std::uint64_t>{3, 3}, {4, 3}, {3, 9}}) {
    RowState state = kOfSums;
    state.residuals.ids = ids;
    EXPECT_THROW(decode_row_state(bytes_of(state), kShape), compress::DecodeError);
  }
}

TEST(RowState, OfATableWithoutElementsIsRefused) {
  for (const RowShape& shape : {RowShape{9, 0}, RowShape{0, 3}}) {
    const transport::Buffer bytes = encode_state(RowState{0, 0, false, {}, {}, {}}, shape);
    EXPECT_THROW(shape_of_state(bytes.bytes()), compress::DecodeError);
    EXPECT_THROW(decode_row_state(bytes.bytes(), shape), compress::DecodeError);
  }
}

TEST(RowState, HostileHeadsAreRefusedOrMeanWhatTheySay) {
  std::mt19937 random(4);
  for (const auto& good : {bytes_of(kState), bytes_of(kOfSums)}) {
    for (int round = 0; round < 5000; ++round) {
      auto bytes = good;
      for (int change = 0; change < 3; ++change)
        bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      try {
        EXPECT_EQ(bytes_of(decode_row_state(bytes, kShape)), bytes);
      } catch (const compress::DecodeError&) {  // NOLINT(bugprone-empty-catch): what it should be
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::kvstore
