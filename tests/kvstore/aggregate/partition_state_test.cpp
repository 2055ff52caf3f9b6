#include "kvstore/aggregate/partition_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "compress/codec.h"
#include "compress/payload/little_endian.h"
#include "kvstore/wire/protocol.h"

namespace gradwire::kvstore {
namespace {

std::vector<std::byte> bytes_of(const PartitionState& state) {
  const transport::Buffer buffer = encode_state(state);
  return {buffer.bytes().begin(), buffer.bytes().end()};
}

PartitionState full() { return {7, {1, -0.0F, 3}, {0.5F, 0, -1}, {{1, 2, 3, 4, 5, 6}, 9}, {1, 0.5F, 2}}; }

TEST(PartitionState, ComesBackAsItWas) {
  for (const PartitionState& state :
       {full(), PartitionState{}, PartitionState{3, {}, {1, 2, 3}, {}},
        PartitionState{1, {4, 5, 6}, {}, {{}, 2}}, PartitionState{1, {4, 5, 6}, {}, {}, {4, 5, 7}}}) {
    EXPECT_EQ(decode_partition_state(bytes_of(state), 3), state);
  }
}

// The bytes of wire/PROTOCOL.md, "States".
TEST(PartitionState, HasTheBytesThatAreWrittenDown) {
  PartitionState state{2, {1}, {-2}, {}, {1.5F}};
  state.optimizer.moments = {0.5F};
  state.optimizer.steps = 3;
  const auto bytes = bytes_of(state);
  ASSERT_EQ(bytes.size(), 24U + 16U);
  EXPECT_EQ(compress::load<std::uint64_t>(bytes.data()), 2U);
  EXPECT_EQ(compress::load<std::uint64_t>(bytes.data() + 8), 3U);
  EXPECT_EQ(compress::load<std::uint32_t>(bytes.data() + 16), 7U);
  EXPECT_EQ(compress::load<std::uint32_t>(bytes.data() + 20), 1U);
  EXPECT_EQ(compress::load<float>(bytes.data() + 24), 1.0F);
  EXPECT_EQ(compress::load<float>(bytes.data() + 28), -2.0F);
  EXPECT_EQ(compress::load<float>(bytes.data() + 32), 0.5F);
  EXPECT_EQ(compress::load<float>(bytes.data() + 36), 1.5F);
}

TEST(PartitionState, NothingIsToldOfAWeightThatIsNotThere) {
  auto bytes = bytes_of({1, {4, 5, 6}, {}, {}});
  compress::store(std::uint32_t{4}, bytes.data() + 16);
  EXPECT_THROW(decode_partition_state(bytes, 3), compress::DecodeError);
}

TEST(PartitionState, OtherLengthsAreRefused) {
  const auto bytes = bytes_of(full());
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_THROW(decode_partition_state(std::span(bytes).first(length), 3), compress::DecodeError) << length;
  EXPECT_THROW(decode_partition_state(bytes, 2), compress::DecodeError);
  EXPECT_THROW(decode_partition_state(bytes, std::uint64_t{1} << 40), compress::DecodeError);
  EXPECT_THROW(decode_partition_state(bytes, std::numeric_limits<std::uint64_t>::max()),
               compress::DecodeError);
}

TEST(PartitionState, HostileHeadsAreRefusedOrMeanWhatTheySay) {
  std::mt19937 random(3);
  const auto good = bytes_of(full());
  for (int round = 0; round < 5000; ++round) {
    auto bytes = good;
    for (int change = 0; change < 3; ++change) bytes[random() % 24] = static_cast<std::byte>(random());
    try {
      const PartitionState state = decode_partition_state(bytes, 3);
      EXPECT_EQ(bytes_of(state), bytes);
    } catch (const compress::DecodeError&) {  // NOLINT(bugprone-empty-catch): what it should be
    }
  }
}

std::vector<std::byte> bytes_of(const OptimizerState& state) {
  const transport::Buffer buffer = encode_state(state);
  return {buffer.bytes().begin(), buffer.bytes().end()};
}

TEST(OptimizerStateBytes, ComeBackAsTheyWere) {
  for (const OptimizerState& state :
       {OptimizerState{}, OptimizerState{{}, 7}, OptimizerState{{1, -0.0F, 3}, 0},
        OptimizerState{{1, 2, 3, 4, 5, 6}, 9}})
    EXPECT_EQ(decode_optimizer_state(bytes_of(state), 3), state);
}

// The bytes of wire/PROTOCOL.md, "States".
TEST(OptimizerStateBytes, AreThoseThatAreWrittenDown) {
  const auto bytes = bytes_of(OptimizerState{{0.5F, -2}, 3});
  ASSERT_EQ(bytes.size(), 8U + 8U);
  EXPECT_EQ(compress::load<std::uint64_t>(bytes.data()), 3U);
  EXPECT_EQ(compress::load<float>(bytes.data() + 8), 0.5F);
  EXPECT_EQ(compress::load<float>(bytes.data() + 12), -2.0F);
}

TEST(OptimizerStateBytes, OfOtherLengthsAreRefused) {
  const auto bytes = bytes_of(OptimizerState{{1, 2, 3, 4, 5, 6}, 9});
  for (const std::size_t length : {0U, 7U, 9U, 12U, 16U, 19U, 24U, 28U, 31U}) {
    EXPECT_THROW(decode_optimizer_state(std::span(bytes).first(length), 3), compress::DecodeError) << length;
  }
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{4}, std::uint64_t{1} << 62})
    EXPECT_THROW(decode_optimizer_state(bytes, count), compress::DecodeError) << count;
  EXPECT_THROW(decode_optimizer_state(bytes_of(OptimizerState{std::vector<float>(9), 0}), 1),
               compress::DecodeError);  // of more kinds than any optimizer keeps
  EXPECT_THROW(decode_optimizer_state(bytes_of(OptimizerState{{}, kMaxSteps + 1}), 3), compress::DecodeError);
}

}  // namespace
}  // namespace gradwire::kvstore
